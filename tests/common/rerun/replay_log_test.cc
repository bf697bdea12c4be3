#include "common/rerun/replay_log.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(ReplayLogTest, AStepIsReadAgainAndThenForgotten) {
  ReplayLog<int> log;
  int next = 0;
  const auto read = [&]() -> absl::StatusOr<int> { return next++; };
  EXPECT_EQ(*log.Next(read), 0);
  EXPECT_EQ(*log.Next(read), 1);
  log.Rewind();
  EXPECT_EQ(*log.Next(read), 0);
  log.Rewind();
  EXPECT_EQ(*log.Next(read), 0);
  EXPECT_EQ(*log.Next(read), 1);
  EXPECT_EQ(log.position(), 2u);
  EXPECT_EQ(log.Next(read).status().code(), absl::StatusCode::kFailedPrecondition);
  log.Advance();
  EXPECT_EQ(log.size(), 0u);
  EXPECT_EQ(*log.Next(read), 2);
}

TEST(ReplayLogTest, AnErrorIsNotAnItem) {
  ReplayLog<int> log;
  EXPECT_FALSE(
      log.Next([]() -> absl::StatusOr<int> { return absl::OutOfRangeError("end of data"); }).ok());
  EXPECT_EQ(log.size(), 0u);
}

}  // namespace
}  // namespace muster
