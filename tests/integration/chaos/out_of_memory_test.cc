// The kernel kills a trainer whose control group has no more memory: the failure says so.
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A control group inside the one of this process, with a limit of memory; version 2 or 1. It goes
// with the object, whose processes must be gone by then.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t limit_bytes) {
    for (const auto& [folder, limit] :
         {std::pair{Own(""), "memory.max"}, std::pair{Own("memory"), "memory.limit_in_bytes"}}) {
      if (folder.empty() || access((folder + "/cgroup.procs").c_str(), W_OK) != 0) continue;
      path_ = absl::StrCat(folder, "/muster-test-", getpid());
      if (mkdir(path_.c_str(), 0755) != 0) {
        error_ = absl::StrCat("cannot make a control group: ", std::strerror(errno));
        path_.clear();
        continue;
      }
      if (Put(limit, limit_bytes)) return;
      error_ = absl::StrCat(path_, " has no ", limit, " that can be written");
      rmdir(path_.c_str());
      path_.clear();
    }
    if (error_.empty()) error_ = "no control group of this process can be written";
  }
  ~MemoryGroup() {
    if (path_.empty()) return;
    EXPECT_TRUE(Eventually([&] { return rmdir(path_.c_str()) == 0; })) << path_;
  }
  bool ok() const { return !path_.empty(); }
  const std::string& error() const { return error_; }
  // Words before a command that is to run in it.
  std::vector<std::string> Inside() const {
    return {"/bin/sh", "-c", absl::StrCat("echo $$ > ", path_, "/cgroup.procs && exec \"$@\""),
            "sh"};
  }

 private:
  // The folder of this process's group in a hierarchy: "ID:CONTROLLER:PATH"; none of version 2.
  static std::string Own(const std::string& controller) {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
      const size_t path = line.rfind(':');
      const size_t name = line.find(':');
      if (path == std::string::npos || line.substr(name + 1, path - name - 1) != controller)
        continue;
      return absl::StrCat("/sys/fs/cgroup", controller.empty() ? "" : "/", controller,
                          line.substr(path + 1));
    }
    return "";
  }
  bool Put(const std::string& file, int64_t value) {
    std::ofstream out(path_ + "/" + file);
    out << value << std::flush;
    return out.good();
  }

  std::string path_, error_;
};

TEST(OutOfMemoryTest, TheKernelsKillIsToldFromOthers) {
  MemoryGroup group(int64_t{1} << 30);
  if (!group.ok()) GTEST_SKIP() << group.error();
  FaultCase run({"dp2", 2, json::object(), {1, 1}});
  run.chaos().KillAgent(1);
  run.chaos().cluster().agent_prefix = group.Inside();
  run.chaos().StartAgent(1);
  ASSERT_TRUE(run.chaos().cluster().WaitForWorkers(2));
  run.SetFault("allocate", 1, 30);
  run.Start();
  EXPECT_THAT(run.WaitForEvent("out_of_memory"), HasSubstr("SIGKILL"));
  run.ExpectSameEnd();
  const json status = run.Status();
  EXPECT_EQ(status["restarts"], 1);
  EXPECT_EQ(status["cause"]["kind"], "out_of_memory") << status;
  EXPECT_EQ(status["cause"]["node"], ChaosCluster::NodeName(1)) << status;
  EXPECT_THAT(status["cause"]["text"].get<std::string>(), HasSubstr("out of memory"));
  // A kill that nobody's lack of memory explains is no such one.
  EXPECT_EQ(run.Events("out_of_memory").size(), 1u);
}

}  // namespace
}  // namespace muster
