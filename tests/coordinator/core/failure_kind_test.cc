#include "coordinator/core/failure_kind.h"

#include <gtest/gtest.h>

#include <set>

namespace muster {
namespace {

TEST(FailureKindTest, OfAnExit) {
  struct Row {
    const char* name;
    ExitedReport exited;
    const char* killed_because;
    FailureKind kind;
  };
  const Row rows[] = {
      {"a code", {.exit_code = 3}, "", FailureKind::kTrainerExit},
      {"a signal", {.signal = 9}, "", FailureKind::kTrainerExit},
      {"killed by the kernel", {.signal = 9, .oom_killed = true}, "", FailureKind::kOutOfMemory},
      {"bad_alloc",
       {.signal = 6, .last_log_lines = {"terminate called", "  what():  std::bad_alloc"}},
       "",
       FailureKind::kOutOfMemory},
      {"of a device",
       {.exit_code = 1, .last_log_lines = {"CUDA out of memory. Tried to allocate 2 GiB"}},
       "",
       FailureKind::kOutOfMemory},
      {"a full disk",
       {.exit_code = 1, .last_log_lines = {"write /ckpt/x: No space left on device"}},
       "",
       FailureKind::kDiskFull},
      {"what was said long ago does not count",
       {.exit_code = 1,
        .last_log_lines = {"std::bad_alloc caught, trying less", "", "", "", "", "", "", "", "", "",
                           "fine"}},
       "",
       FailureKind::kTrainerExit},
      {"could not be started", {.launch_error = "no such file"}, "", FailureKind::kLaunch},
      {"killed for a hang", {.signal = 9, .oom_killed = true}, "is stopped", FailureKind::kHang},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(KindOfExit(row.exited, row.killed_because), row.kind);
  }
}

TEST(FailureKindTest, OfWhatATrainerSays) {
  EXPECT_EQ(KindOfFailed({.reason = "loss is nan"}), FailureKind::kTrainerError);
  EXPECT_EQ(KindOfFailed({.reason = "peer closed", .collective = true}), FailureKind::kCollective);
  EXPECT_EQ(KindOfFailed({.reason = "CUDA error: out of memory", .collective = true}),
            FailureKind::kOutOfMemory);
  EXPECT_EQ(KindOfFailed({.reason = "open /x: Disk quota exceeded"}), FailureKind::kDiskFull);
}

TEST(FailureKindTest, EveryKindHasAName) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(FailureKind::kTimeout); ++i) {
    names.insert(FailureKindName(static_cast<FailureKind>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(FailureKind::kTimeout) + 1);
  EXPECT_EQ(names.count("?"), 0u);
}

}  // namespace
}  // namespace muster
