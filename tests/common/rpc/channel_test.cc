#include "common/rpc/channel.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(BackoffTest, DoublesUpToItsCap) {
  const BackoffOptions options{.first = absl::Milliseconds(100), .cap = absl::Seconds(1)};
  EXPECT_EQ(Backoff(0, 0.0, options), absl::Milliseconds(50));
  EXPECT_EQ(Backoff(1, 0.0, options), absl::Milliseconds(100));
  EXPECT_EQ(Backoff(3, 0.5, options), absl::Milliseconds(600));
  EXPECT_EQ(Backoff(4, 0.0, options), absl::Milliseconds(500));
}

TEST(BackoffTest, StaysInItsBoundsForAnyAttempt) {
  for (const int attempt : {-5, 0, 31, 64, 1'000'000}) {
    for (const double unit : {0.0, 0.999}) {
      const absl::Duration pause = Backoff(attempt, unit);
      EXPECT_GE(pause, absl::Milliseconds(25));
      EXPECT_LE(pause, absl::Seconds(2));
    }
  }
}

TEST(ChannelTest, DeadlineIsSet) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(1000));
  EXPECT_LT(context.deadline(), std::chrono::system_clock::now() + std::chrono::seconds(1001));
  EXPECT_GT(context.deadline(), std::chrono::system_clock::now() + std::chrono::seconds(900));
}

}  // namespace
}  // namespace muster
