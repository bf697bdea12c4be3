#include "coordinator/core/hang_watch.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
constexpr absl::Duration kTick = absl::Milliseconds(50);

class HangWatchTest : public testing::Test {
 protected:
  // Ticks until something is decided, at most `by`; ranks answer at once if `answers`.
  HangWatch::Decision Until(absl::Duration by, bool answers) {
    for (const absl::Duration end = elapsed_ + by; elapsed_ < end;) {
      elapsed_ += kTick;
      const auto decision = watch_.Look(kNow + elapsed_, elapsed_, limit_, 2);
      if (decision.probe.has_value() && answers) {
        for (const int rank : {0, 1}) watch_.Take(rank, {.request = *decision.probe});
      }
      if (decision.probe.has_value() || decision.judge) return decision;
    }
    return {};
  }
  HangWatch watch_;
  absl::Duration elapsed_ = absl::ZeroDuration();
  absl::Duration limit_ = absl::Milliseconds(1300);
};

TEST_F(HangWatchTest, TheVerdictIsThereWhenTheLimitIs) {
  const auto first = Until(absl::Seconds(1), true);
  ASSERT_TRUE(first.probe.has_value());
  EXPECT_EQ(elapsed_, absl::Milliseconds(650));
  const auto second = Until(absl::Seconds(1), true);
  ASSERT_TRUE(second.probe.has_value());
  EXPECT_GT(*second.probe, *first.probe);
  EXPECT_EQ(elapsed_, absl::Milliseconds(1150));
  EXPECT_TRUE(Until(absl::Seconds(1), true).judge);
  EXPECT_EQ(elapsed_, absl::Milliseconds(1300));
  EXPECT_TRUE(watch_.second().reports[1].has_value());
}

// As of a job with steps of some milliseconds.
TEST_F(HangWatchTest, TheVerdictOfAShortLimitIsThereWhenItIs) {
  limit_ = absl::Milliseconds(1050);
  ASSERT_TRUE(Until(absl::Seconds(1), true).probe.has_value());
  ASSERT_TRUE(Until(absl::Seconds(1), true).probe.has_value());
  EXPECT_TRUE(Until(absl::Seconds(1), true).judge);
  EXPECT_EQ(elapsed_, limit_);
}

TEST_F(HangWatchTest, WhoDoesNotAnswerIsWaitedForToALimit) {
  Until(absl::Seconds(1), false);
  Until(absl::Seconds(1), false);
  EXPECT_TRUE(Until(absl::Seconds(3), false).judge);
  EXPECT_EQ(elapsed_, absl::Milliseconds(1150) + HangWatch::kAnswerLimit);
  EXPECT_FALSE(watch_.first().reports[0].has_value());
}

TEST_F(HangWatchTest, ShortWaitsAreNotLookedAt) {
  limit_ = absl::Milliseconds(100);
  const auto decision = Until(absl::Seconds(1), true);
  EXPECT_TRUE(decision.probe.has_value());
  EXPECT_EQ(elapsed_, HangWatch::kMinWait);
}

TEST_F(HangWatchTest, ItLooksAgainAfterPausesThatGrow) {
  std::vector<absl::Duration> judged;
  while (elapsed_ < absl::Minutes(3)) {
    if (Until(absl::Seconds(30), true).judge) judged.push_back(elapsed_);
  }
  ASSERT_GE(judged.size(), 6u);
  EXPECT_LE(judged.size(), 16u);
  EXPECT_LT(judged[1] - judged[0], absl::Seconds(2));
  EXPECT_LT(judged.back() - judged[judged.size() - 2], HangWatch::kMaxPause + absl::Seconds(1));
}

TEST_F(HangWatchTest, ProgressEndsItAndLateAnswersCountForNothing) {
  const auto first = Until(absl::Seconds(1), true);
  watch_.Reset();
  watch_.Take(0, {.request = *first.probe});
  EXPECT_TRUE(watch_.first().reports.empty());
  elapsed_ = absl::ZeroDuration();
  EXPECT_TRUE(Until(absl::Seconds(1), true).probe.has_value());
  EXPECT_EQ(elapsed_, absl::Milliseconds(650));
  watch_.Take(7, {.request = watch_.first().request});  // no such rank
}

}  // namespace
}  // namespace muster
