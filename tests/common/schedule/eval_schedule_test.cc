#include "common/schedule/eval_schedule.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> EvaluatedIterations(const EvalScheduleOptions& options, int64_t last) {
  std::vector<int64_t> iterations;
  for (int64_t i = 1; i <= last; ++i) {
    if (EvaluateAfterStep(options, i, "").evaluate) iterations.push_back(i);
  }
  return iterations;
}

TEST(EvalScheduleTest, IntervalAndLateStart) {
  EvalScheduleOptions options{.eval_interval = 10, .eval_iters = 5};
  EXPECT_THAT(EvaluatedIterations(options, 35), ElementsAre(10, 20, 30));
  options.start_eval_at_iter = 20;
  EXPECT_THAT(EvaluatedIterations(options, 35), ElementsAre(20, 30));
  options.eval_interval.reset();
  EXPECT_THAT(EvaluatedIterations(options, 35), ElementsAre());
}

TEST(EvalScheduleTest, ReasonsSayWhyAndWhyNot) {
  EvalScheduleOptions options{.eval_interval = 10, .eval_iters = 5, .start_eval_at_iter = 20};
  EXPECT_EQ(EvaluateAfterStep(options, 20, ""), (EvalDecision{true, "eval_interval 10"}));
  EXPECT_EQ(EvaluateAfterStep(options, 10, ""),
            (EvalDecision{false, "before start_eval_at_iter 20"}));
  EXPECT_EQ(EvaluateAfterStep(options, 11, ""),
            (EvalDecision{false, "eval_interval 10 does not divide 11"}));
  options.do_valid = false;
  EXPECT_EQ(EvaluateAfterStep(options, 20, ""),
            (EvalDecision{false, "there is no validation data"}));
  options.do_valid = true;
  options.eval_iters = 0;
  EXPECT_EQ(EvaluateAfterStep(options, 20, "asked"), (EvalDecision{false, "eval_iters is 0"}));
}

TEST(EvalScheduleTest, ARequestPassesIntervalAndStart) {
  const EvalScheduleOptions options{
      .eval_interval = 10, .eval_iters = 5, .start_eval_at_iter = 1000};
  EXPECT_EQ(EvaluateAfterStep(options, 3, "directive 4"), (EvalDecision{true, "directive 4"}));
}

TEST(EvalScheduleTest, AtStartOnlyFromTheBeginning) {
  EvalScheduleOptions options{.eval_iters = 5, .at_start = true};
  EXPECT_TRUE(EvaluateAtStart(options, 0).evaluate);
  EXPECT_EQ(EvaluateAtStart(options, 7), (EvalDecision{false, "resumed at iteration 7"}));
  options.at_start = false;
  EXPECT_FALSE(EvaluateAtStart(options, 0).evaluate);
}

TEST(EvalScheduleTest, FinalEvaluationsUnlessTheRunLeftEarly) {
  EvalScheduleOptions options{.eval_iters = 5};
  EXPECT_TRUE(EvaluateAtEnd(options, false).valid);
  EXPECT_TRUE(EvaluateAtEnd(options, false).test);
  EXPECT_FALSE(EvaluateAtEnd(options, true).valid);
  EXPECT_FALSE(EvaluateAtEnd(options, true).test);
  options.do_test = false;
  EXPECT_TRUE(EvaluateAtEnd(options, false).valid);
  EXPECT_FALSE(EvaluateAtEnd(options, false).test);
}

TEST(EvalScheduleTest, EvalMicrobatchesMustDivide) {
  EXPECT_EQ(*EvalMicrobatches(32, 2, 4), 4);
  EXPECT_THAT(std::string(EvalMicrobatches(30, 2, 4).status().message()),
              HasSubstr("eval_global_batch_size=30 must be a positive multiple"));
  EXPECT_FALSE(EvalMicrobatches(0, 2, 4).ok());
}

TEST(EvalScheduleTest, NextEvaluationIsTheOneThatTheTrainerMakes) {
  for (const int64_t interval : {1, 3, 7, 10}) {
    for (const int64_t start : {0, 4, 8}) {
      EvalScheduleOptions options{.eval_interval = interval, .eval_iters = 2};
      options.start_eval_at_iter = start;
      constexpr int64_t kTrainIters = 20;
      for (int64_t iteration = 0; iteration < kTrainIters; ++iteration) {
        int64_t expected = iteration + 1;
        while (expected < kTrainIters && !EvaluateAfterStep(options, expected, "").evaluate) {
          ++expected;
        }
        EXPECT_EQ(NextEvaluation(options, iteration, kTrainIters), expected)
            << "interval " << interval << " start " << start << " iteration " << iteration;
      }
      EXPECT_EQ(NextEvaluation(options, kTrainIters, kTrainIters), std::nullopt);
    }
  }
  EXPECT_EQ(NextEvaluation({.eval_iters = 2}, 5, 20), 20);
  EXPECT_EQ(NextEvaluation({.eval_interval = 5, .eval_iters = 0}, 5, 20), std::nullopt);
}

}  // namespace
}  // namespace muster
