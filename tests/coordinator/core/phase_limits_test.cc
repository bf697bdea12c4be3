#include "coordinator/core/phase_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::HasSubstr;
using Verdict = PhaseClock::Verdict;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

PhaseLimitOptions Options() {
  return {.save = {absl::Seconds(10), absl::Seconds(100)}, .factor = 3, .margin = absl::Seconds(5)};
}

TEST(PhaseLimitsTest, LimitIsLearnedBetweenFloorAndCap) {
  struct Row {
    const char* name;
    std::vector<int> seen_s;
    int limit_s;
  };
  const Row rows[] = {
      {"nothing seen: the cap", {}, 100},          {"short waits: the floor", {0, 1}, 10},
      {"3 x longest + 5 s", {2, 20, 7}, 65},       {"long waits: the cap", {50}, 100},
      {"longer than the cap can be", {5000}, 100}, {"a clock that went back", {-7, 4}, 17},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    PhaseLimits limits(Options());
    for (const int seconds : row.seen_s) limits.Observe(WaitPhase::kSave, absl::Seconds(seconds));
    EXPECT_EQ(limits.Limit(WaitPhase::kSave), absl::Seconds(row.limit_s));
    EXPECT_EQ(limits.Samples(WaitPhase::kSave).count, static_cast<int64_t>(row.seen_s.size()));
  }
}

TEST(PhaseLimitsTest, AStepsLimitFollowsItsP99) {
  PhaseLimits limits{PhaseLimitOptions()};
  EXPECT_EQ(limits.Limit(WaitPhase::kStep), absl::Minutes(30));
  limits.Observe(WaitPhase::kStep, absl::Seconds(9));  // the first one warms up
  EXPECT_GE(limits.Limit(WaitPhase::kStep), absl::Seconds(28));
  for (int i = 0; i < 300; ++i) limits.Observe(WaitPhase::kStep, absl::Milliseconds(100));
  const absl::Duration limit = limits.Limit(WaitPhase::kStep);
  EXPECT_GE(limit, absl::Milliseconds(1300));
  EXPECT_LE(limit, absl::Milliseconds(1300 * 1.1));
  EXPECT_THAT(limits.Describe(WaitPhase::kStep),
              HasSubstr("limit 1.3s, learned from 301 steps, 99% of them within 10"));
  // Steps of no length at all, and such that the cap cuts off.
  PhaseLimits quick{PhaseLimitOptions()};
  quick.Observe(WaitPhase::kStep, absl::ZeroDuration());
  EXPECT_GE(quick.Limit(WaitPhase::kStep), absl::Seconds(1));
  EXPECT_LE(quick.Limit(WaitPhase::kStep), absl::Milliseconds(1010));
  PhaseLimitOptions capped;
  capped.CapStep(absl::Seconds(5));
  PhaseLimits slow(capped);
  slow.Observe(WaitPhase::kStep, absl::Seconds(90));
  EXPECT_EQ(slow.Limit(WaitPhase::kStep), absl::Seconds(5));
}

TEST(PhaseLimitsTest, PhasesLearnApart) {
  PhaseLimits limits{PhaseLimitOptions()};
  limits.Observe(WaitPhase::kLoad, absl::Minutes(5));
  EXPECT_EQ(limits.Limit(WaitPhase::kLoad), absl::Minutes(15) + absl::Seconds(5));
  for (int i = 0; i < kNumWaitPhases; ++i) {
    const auto phase = static_cast<WaitPhase>(i);
    if (phase == WaitPhase::kLoad) continue;
    EXPECT_EQ(limits.Limit(phase), limits.Cap(phase));
  }
}

TEST(PhaseLimitsTest, EveryPhaseHasAFloorBelowItsCapAndAName) {
  const PhaseLimitOptions options;
  std::set<std::string> names;
  for (int i = 0; i < kNumWaitPhases; ++i) {
    const auto phase = static_cast<WaitPhase>(i);
    EXPECT_GT(options.Of(phase).floor, absl::ZeroDuration());
    EXPECT_LE(options.Of(phase).floor, options.Of(phase).cap);
    names.insert(WaitPhaseName(phase));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumWaitPhases));
}

TEST(PhaseLimitsTest, OneCapForAllKeepsFloorsBelowIt) {
  PhaseLimitOptions options;
  options.CapAll(absl::Seconds(15));
  for (int i = 0; i < kNumWaitPhases; ++i) {
    EXPECT_EQ(options.Of(static_cast<WaitPhase>(i)).cap, absl::Seconds(15));
    EXPECT_LE(options.Of(static_cast<WaitPhase>(i)).floor, absl::Seconds(15));
  }
}

TEST(PhaseLimitsTest, WhatWasLearnedSurvivesARestart) {
  PhaseLimits before(Options());
  before.Observe(WaitPhase::kSave, absl::Seconds(20));
  before.Observe(WaitPhase::kStep, absl::Milliseconds(500));
  PhaseLimits after(Options());
  after.Restore(before.all_samples());
  EXPECT_TRUE(after.RestoreSteps(before.steps().Numbers()));
  EXPECT_EQ(after.Limit(WaitPhase::kStep), before.Limit(WaitPhase::kStep));
  EXPECT_EQ(after.Limit(WaitPhase::kSave), absl::Seconds(65));
  EXPECT_THAT(after.Describe(WaitPhase::kSave),
              HasSubstr("limit 1m5s, learned from 1 waits of 20s"));
}

class PhaseClockTest : public testing::Test {
 protected:
  Verdict After(int seconds) {
    now_ += absl::Seconds(seconds);
    return clock_.Check(now_);
  }
  absl::Time now_ = kNow;
  PhaseClock clock_{Options()};
};

TEST_F(PhaseClockTest, BeforeAnythingIsLearnedOnlyTheCapCounts) {
  clock_.Enter(WaitPhase::kSave, now_);
  EXPECT_EQ(After(99), Verdict::kInTime);
  EXPECT_EQ(After(1), Verdict::kOverCap);
}

TEST_F(PhaseClockTest, OverdueIsSaidOnceAWait) {
  clock_.Enter(WaitPhase::kSave, now_);
  now_ += absl::Seconds(2);
  clock_.Progress(now_);  // limit 11 s
  EXPECT_EQ(After(10), Verdict::kInTime);
  EXPECT_EQ(After(1), Verdict::kOverdue);
  EXPECT_TRUE(clock_.overdue());
  EXPECT_EQ(After(50), Verdict::kInTime);
  clock_.Progress(now_);  // after 61 s: the limit is the cap now
  EXPECT_FALSE(clock_.overdue());
  EXPECT_EQ(After(99), Verdict::kInTime);
  EXPECT_EQ(After(1), Verdict::kOverCap);
  EXPECT_EQ(After(1), Verdict::kOverCap);
}

TEST_F(PhaseClockTest, ProgressStartsTheLimitAnew) {
  clock_.Enter(WaitPhase::kSave, now_);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(After(60), Verdict::kInTime);
    clock_.Progress(now_);
  }
}

TEST_F(PhaseClockTest, TheNextPhaseHasItsOwnLimit) {
  clock_.Enter(WaitPhase::kSave, now_);
  now_ += absl::Seconds(30);
  clock_.Enter(WaitPhase::kEvaluation, now_);
  EXPECT_EQ(clock_.limits().Samples(WaitPhase::kSave).longest, absl::Seconds(30));
  EXPECT_EQ(After(200), Verdict::kInTime);
  clock_.Enter(std::nullopt, now_);
  EXPECT_EQ(After(100'000), Verdict::kInTime);
  EXPECT_EQ(clock_.Elapsed(now_), absl::ZeroDuration());
}

TEST_F(PhaseClockTest, TimeThatCountsForNobodyIsNeitherWaitedNorLearned) {
  clock_.Enter(WaitPhase::kSave, now_);
  now_ += absl::Seconds(500);
  clock_.Skip(absl::Seconds(490), now_);
  EXPECT_EQ(clock_.Check(now_), Verdict::kInTime);
  EXPECT_EQ(clock_.Elapsed(now_), absl::Seconds(10));
  clock_.Progress(now_);
  EXPECT_EQ(clock_.limits().Samples(WaitPhase::kSave).count, 0);
  now_ += absl::Seconds(500);
  clock_.Restart(now_);
  EXPECT_EQ(After(99), Verdict::kInTime);
  clock_.Progress(now_);
  EXPECT_EQ(clock_.limits().Samples(WaitPhase::kSave).count, 0);
}

TEST_F(PhaseClockTest, AMeasuredLengthTeachesInsteadOfTheArrivalOfTheNews) {
  clock_.Enter(WaitPhase::kSave, now_);
  now_ += absl::Seconds(40);
  clock_.Progress(now_, absl::Seconds(2));
  EXPECT_EQ(clock_.limits().Samples(WaitPhase::kSave).longest, absl::Seconds(2));
  now_ += absl::Seconds(40);
  clock_.Touch(now_);
  EXPECT_EQ(clock_.limits().Samples(WaitPhase::kSave).longest, absl::Seconds(2));
  EXPECT_EQ(clock_.Elapsed(now_), absl::ZeroDuration());
}

}  // namespace
}  // namespace muster
