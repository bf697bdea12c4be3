#include "coordinator/core/metrics.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

StepMessage Step(int64_t iteration, double loss) {
  StepMessage step;
  step.iteration = iteration;
  step.lm_loss = loss;
  step.timers_ms["optimizer"] = 1;
  return step;
}

std::vector<int64_t> Iterations(const JobHistory& history, int64_t since = 0) {
  std::vector<int64_t> iterations;
  for (const auto* entry : history.steps().Since(since, 1000)) {
    iterations.push_back(entry->value.step.iteration);
  }
  return iterations;
}

TEST(JobHistoryTest, IterationDoneAgainAppearsOnceWithItsLastValues) {
  JobHistory history(1, {});
  for (int i = 1; i <= 5; ++i) history.AddStep(1, Step(i, i), kNow);
  const int64_t next = history.steps().next();
  history.AddStep(2, Step(3, 30), kNow);
  history.AddStep(2, Step(4, 40), kNow);
  EXPECT_EQ(Iterations(history), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(Iterations(history, next), (std::vector<int64_t>{3, 4}));  // a follower sees them
  EXPECT_EQ(history.steps().entries()[2].value.step.lm_loss, 30);
  EXPECT_EQ(history.steps().entries()[2].value.epoch, 2);
}

TEST(JobHistoryTest, OldStepsFallOut) {
  JobHistory history(1, {.max_steps = 3});
  for (int i = 1; i <= 5; ++i) history.AddStep(1, Step(i, i), kNow);
  EXPECT_EQ(Iterations(history), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(history.steps().oldest(), 3);
  EXPECT_EQ(history.steps().next(), 6);
}

TEST(JobHistoryTest, TimersAreKeptOfTheNewestStepOnly) {
  JobHistory history(1, {});
  history.AddStep(1, Step(1, 1), kNow);
  history.AddStep(1, Step(2, 1), kNow);
  EXPECT_TRUE(history.steps().entries()[0].value.step.timers_ms.empty());
  EXPECT_FALSE(history.steps().entries()[1].value.step.timers_ms.empty());
}

TEST(JobHistoryTest, RepeatedEvaluationKeepsTheLastValues) {
  JobHistory history(1, {});
  history.AddEvaluation({.iteration = 10, .split = "valid", .lm_loss = 2});
  history.AddEvaluation({.iteration = 10, .split = "test", .lm_loss = 3});
  history.AddEvaluation({.iteration = 10, .split = "valid", .lm_loss = 1});
  ASSERT_EQ(history.evaluations().size(), 2u);
  EXPECT_EQ(history.evaluations().newest().value.lm_loss, 1);  // a follower sees it
}

TEST(JobHistoryTest, ALoudRankDoesNotPushOutAnothersLines) {
  JobHistory history(2, {.max_log_lines = 100});
  history.AddLogLines(1, 1, "b", {"quiet"}, kNow);
  for (int i = 0; i < 500; ++i) history.AddLogLines(0, 1, "a", {"loud"}, kNow);
  EXPECT_EQ(history.Logs(1, 0, 10).at(0)->value.text, "quiet");
  EXPECT_EQ(history.Logs(0, 0, 1000).size(), 50u);
  const auto all = history.Logs(-1, 0, 1000);
  EXPECT_EQ(all.size(), 51u);
  for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1]->index, all[i]->index);
  EXPECT_EQ(history.oldest_log_index(-1), 1);
}

TEST(JobHistoryTest, LongLineIsCut) {
  JobHistory history(1, {.max_log_line = 5});
  history.AddLogLines(0, 1, "a", {"123456789"}, kNow);
  EXPECT_EQ(history.Logs(-1, 0, 1).at(0)->value.text, "12345...");
}

}  // namespace
}  // namespace muster
