#include "common/rpc/channel.h"

#include <algorithm>
#include <vector>

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
      EXPECT_LE(pause, absl::Seconds(1));
    }
  }
}

// However long a coordinator was away, 4,096 agents are to be back within 3 s: the longest pause is
// well below, and the pauses spread.
TEST(BackoffTest, AgentsComeBackSpreadOverLessThanThreeSeconds) {
  for (const int attempt : {3, 10, 600}) {
    std::vector<int> a_tenth_of_a_second(31);
    for (int agent = 0; agent < 4096; ++agent) {
      const absl::Duration pause = Backoff(attempt, agent / 4096.0);
      ++a_tenth_of_a_second[absl::ToInt64Milliseconds(pause) / 100];
    }
    // gRPC's own pause between two connection attempts comes on top.
    EXPECT_LE(Backoff(attempt, 0.9999) + absl::Milliseconds(500 * 1.2), absl::Seconds(2));
    EXPECT_LT(*std::max_element(a_tenth_of_a_second.begin(), a_tenth_of_a_second.end()), 2500);
  }
  EXPECT_LT(Backoff(0, 1.0) + Backoff(1, 1.0) + Backoff(2, 1.0), absl::Milliseconds(400))
      << "the first tries are quick";
}

TEST(ChannelTest, NumericAddressesAskNoResolver) {
  struct Row {
    const char *address, *target;
  };
  const Row rows[] = {{"127.0.0.1:7700", "ipv4:127.0.0.1:7700"},
                      {"10.1.2.3:1", "ipv4:10.1.2.3:1"},
                      {"[::1]:7700", "ipv6:[::1]:7700"},
                      {"[fd00::2]:7700", "ipv6:[fd00::2]:7700"},
                      {"head.cluster:7700", "head.cluster:7700"},
                      {"localhost:7700", "localhost:7700"},
                      {"1.2.3:7700", "1.2.3:7700"},
                      {"unix:/tmp/x", "unix:/tmp/x"}};
  for (const Row& row : rows) EXPECT_EQ(GrpcTarget(row.address), row.target);
}

TEST(ChannelTest, DeadlineIsSet) {
  grpc::ClientContext context;
  SetDeadline(&context, absl::Seconds(1000));
  EXPECT_LT(context.deadline(), std::chrono::system_clock::now() + std::chrono::seconds(1001));
  EXPECT_GT(context.deadline(), std::chrono::system_clock::now() + std::chrono::seconds(900));
}

}  // namespace
}  // namespace muster
