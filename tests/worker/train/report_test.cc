// The pure parts: timers, the log line, the state that is saved as JSON.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/train/checkpoint_json.h"
#include "worker/train/step_report.h"
#include "worker/train/timers.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST(TimersTest, MeasuresRunningOnesAndBeginsAnew) {
  FakeClock clock;
  Timers timers(&clock);
  timers.Start("interval-time");
  clock.Advance(absl::Milliseconds(5));
  {
    Timers::Scope scope(timers, "optimizer");
    clock.Advance(absl::Milliseconds(2));
  }
  EXPECT_EQ(timers.Elapsed("interval-time"), absl::Milliseconds(7));
  EXPECT_THAT(timers.TakeMilliseconds(),
              ElementsAre(Pair("interval-time", 7.0), Pair("optimizer", 2.0)));
  clock.Advance(absl::Milliseconds(3));
  timers.Stop("interval-time");
  EXPECT_THAT(timers.TakeMilliseconds(), ElementsAre(Pair("interval-time", 3.0)));
  EXPECT_THAT(timers.TakeMilliseconds(), IsEmpty());
}

StepMessage Step(int64_t iteration, double loss, bool skipped = false) {
  StepMessage step;
  step.iteration = iteration;
  step.consumed_samples = 8 * iteration;
  if (loss >= 0) step.lm_loss = loss;
  step.grad_norm = 0.5;
  step.learning_rate = 0.01;
  step.elapsed_ms = 20;
  step.tokens_per_s = 6400;
  step.global_batch_size = 8;
  step.skipped = skipped;
  return step;
}

TEST(TrainingLogTest, FirstIterationThenEachIntervalWithItsMeans) {
  TrainingLog log(3);
  // The first is printed without a reset: it counts in its interval as well.
  EXPECT_THAT(
      log.Add(Step(1, 4), {{"lm loss", 4}}, 9),
      AllOf(HasSubstr(" iteration        1/       9 |"), HasSubstr("lm loss: 4.000000E+00 |"),
            HasSubstr(" consumed samples:            8 |")));
  // A skipped step's loss does not count.
  EXPECT_EQ(log.Add(Step(2, 100, true), {{"lm loss", 100}}, 9), "");
  EXPECT_THAT(
      log.Add(Step(3, 2), {{"lm loss", 2}}, 9),
      AllOf(HasSubstr(" iteration        3/       9 |"), HasSubstr("lm loss: 3.000000E+00 |"),
            HasSubstr("elapsed time per iteration (ms): 20.0 |"), HasSubstr("tokens/s: 6400 |"),
            HasSubstr("learning rate: 1.000000E-02 |"), HasSubstr("global batch size:     8 |"),
            HasSubstr("grad norm: 0.500 |"), HasSubstr("number of skipped iterations:   1 |"),
            HasSubstr("number of nan iterations:   0 |")));
  EXPECT_EQ(log.Add(Step(4, 1), {{"lm loss", 1}}, 9), "");
  EXPECT_EQ(log.Add(Step(5, 1), {{"lm loss", 1}}, 9), "");
  EXPECT_THAT(log.Add(Step(6, 1), {{"lm loss", 1}}, 9),
              AllOf(HasSubstr("lm loss: 1.000000E+00 |"),
                    HasSubstr("number of skipped iterations:   0 |")));
}

TEST(TrainingLogTest, ASkippedStepWhoseLossIsNotFiniteIsANanIteration) {
  TrainingLog log(1);
  EXPECT_THAT(log.Add(Step(1, -1, true), {}, 9), HasSubstr("number of nan iterations:   1 |"));
}

TEST(CheckpointJsonTest, EveryFieldComesBack) {
  CommonCheckpointState state;
  state.spec_json = "{\"name\": \"a\"}";
  state.progress = {.iteration = 7,
                    .consumed_train_samples = 56,
                    .consumed_valid_samples = 16,
                    .skipped_train_samples = 3,
                    .floating_point_operations_so_far = 1.2345678901234567e20};
  state.lr_schedule = LrScheduleState{.max_lr = 0.1, .num_steps = 56};
  state.loss_scaler = LossScalerState{.scale = 1024, .growth_tracker = 5, .hysteresis_tracker = 1};
  OptimizerGroupState group;
  group.identity.wd_mult = 0;
  group.identity.max_lr = 0.3;
  group.step = 7;
  state.optimizer_groups = {group};
  const std::string json = EncodeCommonState(state);
  const auto back = DecodeCommonState(json);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->spec_json, state.spec_json);
  EXPECT_EQ(back->progress.floating_point_operations_so_far,
            state.progress.floating_point_operations_so_far);
  EXPECT_EQ(EncodeCommonState(*back), json);
  ASSERT_EQ(back->optimizer_groups.size(), 1u);
  EXPECT_EQ(back->optimizer_groups[0].identity.max_lr, 0.3);
  EXPECT_EQ(back->optimizer_groups[0].identity.min_lr, std::nullopt);

  const std::map<std::string, std::string> regions = {
      {"default", std::string("\0\xff\n", 3)}, {"model-parallel-rng", std::string(5000, 'x')}};
  const auto rng = DecodeRngState(EncodeRngState(regions));
  ASSERT_TRUE(rng.ok()) << rng.status();
  EXPECT_EQ(*rng, regions);
}

TEST(CheckpointJsonTest, DamageIsAnErrorThatNamesTheField) {
  const std::string json = EncodeCommonState({.spec_json = "{}"});
  std::string renamed = json;
  renamed.replace(renamed.find("consumed_train_samples"), 8, "CONSUMED");
  const auto missing = DecodeCommonState(renamed);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("consumed_train_samples"));
  for (size_t length = 0; length < json.size(); length += 7) {
    EXPECT_FALSE(DecodeCommonState(json.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(DecodeRngState("{}").ok());
  EXPECT_FALSE(DecodeRngState("{\"rng\": {\"default\": 3}}").ok());
}

TEST(TrainingLogTest, ShowsZerosAndTheParametersNormWhereTheyAreKnown) {
  TrainingLog log(1);
  StepMessage step = Step(1, 4);
  step.num_zeros = 12;
  step.params_norm = 2.5;
  EXPECT_THAT(log.Add(step, {{"lm loss", 4}}, 9),
              HasSubstr(" grad norm: 0.500 | num zeros: 12 | params norm: 2.500 |"));
}

}  // namespace
}  // namespace muster
