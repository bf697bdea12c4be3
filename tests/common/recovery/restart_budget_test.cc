#include "common/recovery/restart_budget.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::UnixEpoch();

FailureAt InStep(int64_t committed) {
  return {.iteration = committed, .in_step = true, .by_trainer = true};
}
FailureAt LostNode(int64_t committed) { return {.iteration = committed, .in_step = true}; }

TEST(RestartBudgetTest, NoneMeansThatTheFirstFailureEndsTheJob) {
  RestartBudget budget({.max_restarts = 0});
  const RestartVerdict verdict = budget.OnFailure(LostNode(5), kStart);
  EXPECT_FALSE(verdict.restart);
  EXPECT_THAT(verdict.reason, HasSubstr("recovery.max_restarts=0"));
}

TEST(RestartBudgetTest, SpentWithinTheWindow) {
  RestartBudget budget({.max_restarts = 2, .window = absl::Hours(1)});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(budget.OnFailure(LostNode(10 * i), kStart + absl::Minutes(i)).restart);
    budget.OnCommitted(10 * i + 1);
  }
  const RestartVerdict verdict = budget.OnFailure(LostNode(30), kStart + absl::Minutes(59));
  EXPECT_FALSE(verdict.restart);
  EXPECT_THAT(verdict.reason, HasSubstr("2 restarts within 1h are used up"));
}

TEST(RestartBudgetTest, OldRestartsDoNotCount) {
  RestartBudget budget({.max_restarts = 1, .window = absl::Hours(1)});
  for (int hour = 0; hour < 20; ++hour) {
    EXPECT_TRUE(budget.OnFailure(LostNode(hour), kStart + absl::Hours(hour)).restart) << hour;
    budget.OnCommitted(hour + 1);
    EXPECT_EQ(budget.state().restarts.size(), 1u);
  }
}

TEST(RestartBudgetTest, AnotherFailureOfTheSameRecoveryCostsNothing) {
  RestartBudget budget({.max_restarts = 1, .max_failures_of_step = 10});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(budget.OnFailure(LostNode(7), kStart).restart) << i;
  budget.OnCommitted(8);
  EXPECT_FALSE(budget.OnFailure(LostNode(8), kStart).restart);
}

TEST(RestartBudgetTest, AStepThatIsNeverCommittedEndsTheJob) {
  RestartBudget budget({.max_restarts = 100, .max_failures_of_step = 3});
  EXPECT_TRUE(budget.OnFailure(LostNode(7), kStart).restart);
  // Steps that are run again after a rollback are no progress.
  budget.OnCommitted(6);
  budget.OnCommitted(7);
  EXPECT_TRUE(budget.OnFailure(LostNode(7), kStart).restart);
  const RestartVerdict verdict = budget.OnFailure(LostNode(7), kStart);
  EXPECT_FALSE(verdict.restart);
  EXPECT_FALSE(verdict.poisoned);
  EXPECT_EQ(verdict.step_failures, 3);
  EXPECT_THAT(verdict.reason, HasSubstr("step 8 failed 3 times"));
}

TEST(RestartBudgetTest, ACommitOfTheStepForgivesIt) {
  RestartBudget budget({.max_restarts = 100, .max_failures_of_step = 2});
  for (int64_t step = 1; step < 10; ++step) {
    EXPECT_TRUE(budget.OnFailure(InStep(step), kStart).restart);
    budget.OnCommitted(step + 1);
  }
}

TEST(RestartBudgetTest, ABatchIsSuspectedWhenTheStepEndsItsTrainersTwice) {
  RestartBudget budget({.max_restarts = 100, .max_failures_of_step = 3});
  EXPECT_FALSE(budget.OnFailure(InStep(7), kStart).poisoned);
  const RestartVerdict second = budget.OnFailure(InStep(7), kStart);
  EXPECT_TRUE(second.restart);
  EXPECT_TRUE(second.poisoned);
  EXPECT_THAT(second.reason, HasSubstr("step 8 ended its trainers 2 times"));
  const RestartVerdict third = budget.OnFailure(InStep(7), kStart);
  EXPECT_FALSE(third.restart);
  EXPECT_THAT(third.reason, HasSubstr("suspected"));
}

TEST(RestartBudgetTest, LostNodesAndFailuresOutsideOfAStepDoNotAccuseTheBatch) {
  RestartBudget budget({.max_restarts = 100, .max_failures_of_step = 10});
  budget.OnFailure(InStep(7), kStart);
  budget.OnFailure(LostNode(7), kStart);
  EXPECT_FALSE(
      budget.OnFailure({.iteration = 7, .in_step = false, .by_trainer = true}, kStart).poisoned);
}

TEST(RestartBudgetTest, ADeathWhoseLastWordsWereNotHeardFollowsOneInTheStep) {
  RestartBudget budget({.max_restarts = 100, .max_failures_of_step = 3});
  const FailureAt unheard = {.iteration = 7, .in_step = false, .by_trainer = true};
  EXPECT_FALSE(budget.OnFailure(unheard, kStart).poisoned);
  RestartBudget other({.max_restarts = 100, .max_failures_of_step = 3});
  other.OnFailure(InStep(7), kStart);
  const RestartVerdict second = other.OnFailure(unheard, kStart);
  EXPECT_TRUE(second.restart);
  EXPECT_TRUE(second.poisoned);
}

TEST(RestartBudgetTest, ARestoredStateGoesOnWhereItWas) {
  RestartBudget budget({.max_restarts = 1});
  budget.OnFailure(InStep(7), kStart);
  RestartBudget other({.max_restarts = 1});
  other.Restore(budget.state());
  EXPECT_EQ(other.state(), budget.state());
  EXPECT_TRUE(other.OnFailure(InStep(7), kStart).poisoned);
}

}  // namespace
}  // namespace muster
