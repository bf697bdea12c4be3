// TrainerProcess over shell scripts that stand in for muster-trainer.
#include "worker/agent/trainer_process.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/runtime/mutex.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What the callbacks brought; Wait... block until it is there, at most 20 s.
class Recorder {
 public:
  TrainerProcess::Callbacks callbacks() {
    return {
        .on_message = [this](std::string line) { Note(&messages_, std::move(line)); },
        .on_log_line = [this](std::string line) { Note(&log_lines_, std::move(line)); },
        .on_dying =
            [this](TrainerExit exit) {
              MutexLock lock(&mu_);
              EXPECT_FALSE(dying_.has_value() || exit_.has_value());
              dying_ = std::move(exit);
            },
        .on_exit =
            [this](TrainerExit exit) {
              MutexLock lock(&mu_);
              EXPECT_FALSE(exit_.has_value());
              exit_ = std::move(exit);
              changed_.NotifyAll();
            },
    };
  }
  TrainerExit WaitExit() {
    Wait([this] { return exit_.has_value(); });
    MutexLock lock(&mu_);
    return exit_.value_or(TrainerExit{.code = -99, .error = "no exit within the test's limit"});
  }
  std::optional<TrainerExit> dying() {
    MutexLock lock(&mu_);
    return dying_;
  }
  std::vector<std::string> WaitMessages(size_t count) { return WaitLines(&messages_, count); }
  std::vector<std::string> WaitLogLines(size_t count) { return WaitLines(&log_lines_, count); }
  size_t num_log_lines() {
    MutexLock lock(&mu_);
    return log_lines_.size();
  }

 private:
  void Note(std::vector<std::string>* lines, std::string line) {
    MutexLock lock(&mu_);
    EXPECT_FALSE(dying_.has_value() || exit_.has_value()) << "after the exit: " << line;
    lines->push_back(std::move(line));
    changed_.NotifyAll();
  }
  std::vector<std::string> WaitLines(std::vector<std::string>* lines, size_t count) {
    Wait([&] { return lines->size() >= count; });
    MutexLock lock(&mu_);
    return *lines;
  }
  template <typename Condition>
  void Wait(Condition condition) {
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    MutexLock lock(&mu_);
    while (!condition() && absl::Now() < limit) changed_.WaitFor(&mu_, absl::Seconds(1));
    EXPECT_TRUE(condition()) << "not within the test's limit";
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> messages_, log_lines_;
  std::optional<TrainerExit> dying_, exit_;
};

class TrainerProcessTest : public ::testing::Test {
 protected:
  TrainerProcessTest() {
    char folder[] = "/tmp/muster-trainer-process-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~TrainerProcessTest() override {
    for (const char* name : {"/log", "/log.1", "/flag"}) unlink((folder_ + name).c_str());
    rmdir(folder_.c_str());
  }
  TrainerProcess::Options Shell(std::string script) {
    return {
        .program = "/bin/sh", .arguments = {"-c", std::move(script)}, .log_path = folder_ + "/log"};
  }
  std::unique_ptr<TrainerProcess> Start(TrainerProcess::Options options) {
    auto process = TrainerProcess::Start(std::move(options), recorder_.callbacks());
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }

  std::string folder_;
  Recorder recorder_;
};

TEST_F(TrainerProcessTest, ExitCodeComesWithTheLastLogLines) {
  auto process = Start(Shell("echo to stdout; echo to stderr >&2; printf unfinished; exit 7"));
  const TrainerExit exit = recorder_.WaitExit();
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_EQ(exit.Describe(), "exit code 7");
  EXPECT_THAT(exit.last_log_lines, ElementsAre("to stdout", "to stderr", "unfinished"));
  EXPECT_EQ(ReadFile(folder_ + "/log"), "to stdout\nto stderr\nunfinished");
}

TEST_F(TrainerProcessTest, AFullDiskCostsTheLogFileAndNothingElse) {
  std::vector<std::string> problems;
  TrainerProcess::Options options = Shell("echo one; echo two");
  options.log_path = "/dev/full";
  TrainerProcess::Callbacks callbacks = recorder_.callbacks();
  callbacks.on_log_problem = [&](std::string text) { problems.push_back(std::move(text)); };
  auto process = TrainerProcess::Start(std::move(options), std::move(callbacks));
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_THAT(recorder_.WaitExit().last_log_lines, ElementsAre("one", "two"));
  EXPECT_THAT(recorder_.WaitLogLines(2), ElementsAre("one", "two"));
  ASSERT_EQ(problems.size(), 1u) << "said once";
  EXPECT_THAT(problems[0], HasSubstr("/dev/full can't be written (No space left on device)"));
}

TEST_F(TrainerProcessTest, SignalIsReported) {
  auto process = Start(Shell("kill -SEGV $$"));
  const TrainerExit exit = recorder_.WaitExit();
  EXPECT_EQ(exit.signal, SIGSEGV);
  EXPECT_THAT(exit.Describe(), HasSubstr("signal 11 (Segmentation fault)"));
}

// With a quarter of a GiB to give back the notice comes first, unless this process is scheduled
// late: one time of ten is enough.
std::optional<TrainerExit> DeathNotice(const std::function<void(TrainerProcess&)>& end,
                                       const TrainerExit& expected) {
  for (int turn = 0; turn < 10; ++turn) {
    Recorder recorder;
    auto process =
        TrainerProcess::Start({.program = LIFE_HOLDER, .arguments = {"256"}}, recorder.callbacks());
    EXPECT_TRUE(process.ok()) << process.status();
    recorder.WaitMessages(1);
    end(**process);
    const TrainerExit exit = recorder.WaitExit();
    EXPECT_EQ(exit.code, expected.code);
    EXPECT_EQ(exit.signal, expected.signal);
    if (recorder.dying()) return recorder.dying();
  }
  return std::nullopt;
}

TEST_F(TrainerProcessTest, ADeathIsToldBeforeTheMemoryIsFreed) {
  const auto killed = DeathNotice([](TrainerProcess& process) { process.Signal(SIGKILL); },
                                  {.code = -1, .signal = SIGKILL});
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->signal, SIGKILL);
  EXPECT_THAT(killed->last_log_lines, ElementsAre("last words"));
  const auto left = DeathNotice(
      [](TrainerProcess& process) { EXPECT_TRUE(process.Send("leave\n").ok()); }, {.code = 7});
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->code, 7);
  EXPECT_EQ(left->signal, 0);
}

TEST_F(TrainerProcessTest, MessagesGoBothWays) {
  auto process = Start(Shell("echo hello >&3; read line <&3; echo \"got $line\" >&3"));
  EXPECT_THAT(recorder_.WaitMessages(1), ElementsAre("hello"));
  EXPECT_TRUE(process->Send("order 1\n").ok());
  EXPECT_THAT(recorder_.WaitMessages(2), ElementsAre("hello", "got order 1"));
  EXPECT_EQ(recorder_.WaitExit().code, 0);
  EXPECT_EQ(process->Send("late\n").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrainerProcessTest, EndOfControlSocketReachesTheTrainerAfterWhatWasQueued) {
  auto process = Start(Shell("while read line <&3; do echo \"$line\" >&3; done; echo end >&3"));
  EXPECT_TRUE(process->Send("last order\n").ok());
  process->CloseControl();
  EXPECT_THAT(recorder_.WaitMessages(2), ElementsAre("last order", "end"));
  EXPECT_EQ(recorder_.WaitExit().code, 0);
}

TEST_F(TrainerProcessTest, OrderlySignalIsNotAKill) {
  auto process = Start(Shell("trap 'exit 5' TERM; echo ready >&3; while :; do read x <&3; done"));
  recorder_.WaitMessages(1);
  process->KillAfter(absl::Seconds(30), "too slow");
  process->Signal(SIGTERM);
  const TrainerExit exit = recorder_.WaitExit();
  EXPECT_EQ(exit.code, 5);
  EXPECT_EQ(exit.error, "");
}

TEST_F(TrainerProcessTest, StoppedTrainerIsKilledAfterTheGrace) {
  auto process = Start(Shell("echo ready >&3; kill -STOP $$"));
  recorder_.WaitMessages(1);
  process->Signal(SIGTERM);  // a stopped process does not act on it
  process->KillAfter(absl::Milliseconds(50), "it did not stop within the grace");
  const TrainerExit exit = recorder_.WaitExit();
  // The shell may not have stopped itself yet when SIGTERM came.
  EXPECT_TRUE(exit.signal == SIGKILL || exit.signal == SIGTERM) << exit.Describe();
  if (exit.signal == SIGKILL) {
    EXPECT_EQ(exit.error, "it did not stop within the grace");
  }
}

TEST_F(TrainerProcessTest, FloodOfLogLinesIsBounded) {
  TrainerProcess::Options options =
      Shell("i=0; while [ $i -lt 20000 ]; do echo \"line $i\"; i=$((i+1)); done");
  options.tail_lines = 3;
  options.max_log_bytes = 100'000;
  auto process = Start(std::move(options));
  const TrainerExit exit = recorder_.WaitExit();
  EXPECT_THAT(exit.last_log_lines, ElementsAre("line 19997", "line 19998", "line 19999"));
  EXPECT_EQ(recorder_.num_log_lines(), 20000u);
  EXPECT_LE(ReadFile(folder_ + "/log").size(), 100'000u + (64 << 10));
  EXPECT_LE(ReadFile(folder_ + "/log.1").size(), 100'000u + (64 << 10));
}

TEST_F(TrainerProcessTest, TailIsBoundedInBytesToo) {
  TrainerProcess::Options options = Shell("printf '%05000d\\n' 1; echo end");
  options.max_log_line = 1000;
  options.tail_bytes = 1500;
  auto process = Start(std::move(options));
  const TrainerExit exit = recorder_.WaitExit();
  ASSERT_EQ(exit.last_log_lines.size(), 2u);
  EXPECT_EQ(exit.last_log_lines[0].size(), 1000u);
  EXPECT_EQ(exit.last_log_lines[1], "end");
  EXPECT_EQ(recorder_.num_log_lines(), 6u);
}

TEST_F(TrainerProcessTest, TooLongControlLineEndsTheTrainer) {
  TrainerProcess::Options options = Shell("printf '%02000d' 1 >&3; read x <&3; read x <&3");
  options.max_control_line = 1000;
  auto process = Start(std::move(options));
  const TrainerExit exit = recorder_.WaitExit();
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_EQ(exit.error, "it sent a control line longer than 1000 bytes");
}

TEST_F(TrainerProcessTest, TrainerThatDoesNotReadFillsTheOutbox) {
  TrainerProcess::Options options = Shell("echo ready >&3; read x; kill -STOP $$");
  options.max_outbox = 1 << 20;
  auto process = Start(std::move(options));
  recorder_.WaitMessages(1);
  const std::string line = std::string(100'000, 'x') + "\n";
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = process->Send(line);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(TrainerProcessTest, DestructorLeavesNoProcess) {
  pid_t pid = 0, grandchild = 0;
  int grandchild_fd = -1;
  {
    auto process = Start(Shell("sleep 1000 & echo $! >&3; wait"));
    pid = process->pid();
    const std::vector<std::string> lines = recorder_.WaitMessages(1);
    ASSERT_EQ(lines.size(), 1u);
    ASSERT_TRUE(absl::SimpleAtoi(lines[0], &grandchild));
    grandchild_fd = static_cast<int>(syscall(SYS_pidfd_open, grandchild, 0));
    ASSERT_GE(grandchild_fd, 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(recorder_.WaitExit().signal, SIGKILL);
  pollfd polled = {grandchild_fd, POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 20'000), 1) << "what the trainer started lives on";
  close(grandchild_fd);
}

TEST_F(TrainerProcessTest, OnlyTheNamedDescriptorsAreInherited) {
  const int leaked = dup(1);  // not close-on-exec, as a careless library would leave it
  auto process = Start(Shell("ls /proc/self/fd | tr '\\n' ' '"));
  close(leaked);
  const std::vector<std::string> lines = recorder_.WaitExit().last_log_lines;
  ASSERT_EQ(lines.size(), 1u);
  // The last one is ls's own.
  EXPECT_EQ(lines[0], "0 1 2 3 4 ");
}

TEST_F(TrainerProcessTest, EnvironmentIsAddedAndReplaced) {
  setenv("MUSTER_TEST_REPLACED", "old", 1);
  setenv("MUSTER_TEST_KEPT", "kept", 1);
  TrainerProcess::Options options =
      Shell("echo $MUSTER_TEST_REPLACED $MUSTER_TEST_KEPT $OMP_NUM_THREADS");
  options.env = {{"MUSTER_TEST_REPLACED", "new"}, {"OMP_NUM_THREADS", "3"}};
  auto process = Start(std::move(options));
  EXPECT_THAT(recorder_.WaitExit().last_log_lines, ElementsAre("new kept 3"));
}

TEST_F(TrainerProcessTest, MissingProgramIsNotFoundAndNamed) {
  TrainerProcess::Options options = Shell("");
  options.program = folder_ + "/no-such-trainer";
  auto process = TrainerProcess::Start(options, recorder_.callbacks());
  EXPECT_EQ(process.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(process.status().message()), HasSubstr("no-such-trainer"));
}

}  // namespace
}  // namespace muster
