// What an agent learns about its machine: processes, kills for want of memory, devices.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/runtime/mutex.h"
#include "common/runtime/spawn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/device_checker.h"
#include "worker/agent/oom_kills.h"
#include "worker/agent/process_look.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class NodeFactsTest : public ::testing::Test {
 protected:
  NodeFactsTest() {
    char folder[] = "/tmp/muster-facts-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~NodeFactsTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::string WriteProgram(const std::string& script) {
    const std::string path = Write("program", absl::StrCat("#!/bin/sh\n", script, "\n"));
    chmod(path.c_str(), 0755);
    return path;
  }

  std::string folder_;
};

TEST_F(NodeFactsTest, AProcessIsReadFromItsStatLine) {
  const ProcessLook look = ParseProcessStat(
      "77 (a (b) c) T 1 77 77 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 100 1000 10 1\n", 100);
  EXPECT_TRUE(look.running);
  EXPECT_EQ(look.state, "T");
  EXPECT_EQ(look.cpu_ms, 3000);
  EXPECT_FALSE(ParseProcessStat("77 (x) Z 1 77 77 0 -1 0 0 0 0 0 1 1 0 0", 100).running);
  EXPECT_FALSE(ParseProcessStat("", 100).running);
  EXPECT_FALSE(ParseProcessStat("77 (x) R 1 2", 100).running);
}

TEST_F(NodeFactsTest, AStoppedProcessIsSeenAsOne) {
  EXPECT_TRUE(LookAtProcess(getpid()).running);
  EXPECT_FALSE(LookAtProcess(0).running) << "not started yet";
  pid_t pid = -1;
  ASSERT_EQ(Spawn({.program = "/bin/sh",
                   .arguments = {"-c", "kill -STOP $$; exec true"},
                   .output_path = "/dev/null"},
                  &pid),
            0);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, pid, &info, WSTOPPED), 0);
  EXPECT_EQ(LookAtProcess(pid).state, "T");
  kill(pid, SIGKILL);
  ASSERT_EQ(waitid(P_PID, pid, &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(LookAtProcess(pid).running) << "not reaped yet";
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(LookAtProcess(pid).state, "");
}

TEST_F(NodeFactsTest, TheFileThatCountsOomKillsIsThatOfTheGroup) {
  EXPECT_EQ(OomFile("0::/a/b\n", folder_), "") << "nothing is mounted";
  const std::string v2 = Write("a/b/memory.events", "low 0\nmax 9\noom 2\noom_kill 3\n");
  EXPECT_EQ(OomFile("0::/a/b\n", folder_), v2);
  const std::string v1 = Write("memory/job/memory.oom_control", "under_oom 0\noom_kill 4\n");
  EXPECT_EQ(OomFile("9:name=systemd:/\n4:cpu,memory:/job\n0::/x\n", folder_), v1);
  const std::string inside = Write("memory/memory.oom_control", "oom_kill 4\n");
  EXPECT_EQ(OomFile("4:memory:/seen/from/outside\n", folder_), inside) << "in a container";
  EXPECT_EQ(ParseOomKills("low 0\noom_kill 3\noom_group_kill 9\n"), 3);
  EXPECT_EQ(ParseOomKills("low 0\n"), std::nullopt);
}

TEST_F(NodeFactsTest, EachOomKillIsCountedForOneTrainer) {
  const std::string file = Write("memory.events", "oom_kill 3\n");
  OomKills kills(file);
  EXPECT_FALSE(kills.TakeOne()) << "those before this agent's start";
  Write("memory.events", "oom_kill 5\n");
  EXPECT_TRUE(kills.TakeOne());
  EXPECT_TRUE(kills.TakeOne());
  EXPECT_FALSE(kills.TakeOne()) << "somebody's plain SIGKILL";
  EXPECT_FALSE(OomKills("").TakeOne());
}

TEST_F(NodeFactsTest, WorkersOfOneCpuShareACheck) {
  DeviceChecker checker({.program = WriteProgram(absl::StrCat(
                             "echo run >>", folder_,
                             "/runs; echo \"a warning\" >&2; echo "
                             "'{\"kind\":\"test\",\"fingerprint\":\"f0\",\"copy_gb_per_s\":2}'"))});
  const auto checks = checker.CheckNow({"cpu", "cpu", "cuda:1"});
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks.at("cpu").fingerprint, "f0");
  EXPECT_EQ(checks.at("cuda:1").device, "cuda:1");
  EXPECT_EQ(checks.at("cpu").error, "");
  std::ifstream runs(folder_ + "/runs");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(runs), {}, '\n'), 2);
}

TEST_F(NodeFactsTest, ACheckThatCannotBeRunIsAResult) {
  struct Row {
    const char* name;
    std::string script;  // empty: there is no program
    bool not_run;
    const char* error;
  };
  const Row rows[] = {
      {"no program", "", true, "cannot start"},
      {"says nothing", "exit 3", true, "exit code 3"},
      {"hangs", "sleep 600", true, "took more than 200ms"},
      {"crashes", "kill -SEGV $$", false, "the device check crashed: signal 11"},
      {"finds something", "echo '{\"error\":\"bad memory\"}'; exit 1", false, "bad memory"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const std::string program = row.script.empty() ? folder_ + "/none" : WriteProgram(row.script);
    DeviceChecker checker({.program = program, .limit = absl::Milliseconds(200)});
    const DeviceCheck check = checker.CheckNow({"cpu"}).at("cpu");
    EXPECT_EQ(check.not_run, row.not_run);
    EXPECT_THAT(check.error, HasSubstr(row.error));
    EXPECT_EQ(check.device, "cpu");
  }
}

TEST_F(NodeFactsTest, ALaterCheckRunsBehindItsDelayAndEndsWithItsOwner) {
  Mutex mu;
  CondVar changed;
  int done = 0;
  const auto note = [&](DeviceCheck check) {
    MutexLock lock(&mu);
    EXPECT_EQ(check.fingerprint, "f0");
    ++done;
    changed.NotifyAll();
  };
  const std::string good = WriteProgram("echo '{\"fingerprint\":\"f0\"}'");
  {
    DeviceChecker checker({.program = good, .delay = absl::Milliseconds(10)});
    checker.CheckLater("cpu", note);
    checker.CheckLater("cuda:0", note);
    MutexLock lock(&mu);
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (done < 2 && absl::Now() < limit) changed.WaitFor(&mu, absl::Seconds(1));
    EXPECT_EQ(done, 2);
  }
  const absl::Time start = absl::Now();
  {
    DeviceChecker checker({.program = WriteProgram("sleep 600"), .delay = absl::ZeroDuration()});
    checker.CheckLater("cpu", note);
  }
  {
    DeviceChecker never({.program = good, .delay = absl::Hours(1)});
    never.CheckLater("cpu", note);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(8)) << "less than its limit";
}

}  // namespace
}  // namespace muster
