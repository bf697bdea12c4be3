// Training in fp16: the loss scale, skipped steps and what they delay.

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/schedule/loss_scaler.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

// A scale at which nothing overflows.
const std::vector<std::string> kCalm = {"training.fp16=true", "training.initial_loss_scale=1024"};
// Every case below that overflows does so because 2^32, the default, is far too much.
const std::vector<std::string> kOverflowing = {"training.fp16=true",
                                               "training.loss_scale_window=100"};

// Forward steps other than GPT's come from a plugin; the test registers its own.
constexpr char kPlugin[] = "plugin=/opt/muster/plugins/none.so";

int64_t NumSkippedAtStart(const std::vector<StepMessage>& steps) {
  int64_t count = 0;
  while (count < static_cast<int64_t>(steps.size()) && steps[count].skipped) ++count;
  return count;
}

// From iteration `first` on, to the bit.
void ExpectSameSteps(const std::vector<StepMessage>& a, const std::vector<StepMessage>& b,
                     int64_t first) {
  const auto rest = [first](const std::vector<StepMessage>& steps) {
    std::vector<StepMessage> out;
    for (const StepMessage& step : steps) {
      if (step.iteration >= first) out.push_back(step);
    }
    return out;
  };
  ASSERT_FALSE(rest(b).empty());
  ExpectSameCurve(rest(a), rest(b), 0);
}

// The first `count` iterations passed over, "[1,2,3]".
std::string IterationsToSkip(int64_t count) {
  std::string list;
  for (int64_t i = 1; i <= count; ++i) absl::StrAppend(&list, i == 1 ? "" : ",", i);
  return absl::StrCat("training.iterations_to_skip=[", list, "]");
}

// fp16 keeps 11 bits: weights of 0.02 are rounded by 1e-5, and ten steps of Adam at lr 0.01 spread
// that.
TEST(Fp16Test, TenStepsFollowFp32) {
  TrainTestRoot root;
  const auto fp32 = Train(root.Spec({"training.train_iters=10"}));
  for (const char* grads : {"parallel.accumulate_allreduce_grads_in_fp32=false",
                            "parallel.accumulate_allreduce_grads_in_fp32=true"}) {
    SCOPED_TRACE(grads);
    const auto fp16 = Train(root.Spec(With(kCalm, {"training.train_iters=10", grads})));
    EXPECT_EQ(NumSkippedAtStart(fp16), 0);
    ExpectSameCurve(fp16, fp32, 1e-2);
    EXPECT_NE(Losses(fp16), Losses(fp32));  // it was fp16
  }
}

TEST(Fp16Test, ScaleFallsUntilGradientsAreFinite) {
  TrainTestRoot root;
  const auto steps = Train(
      root.Spec({"training.fp16=true", "training.loss_scale_window=4", "training.train_iters=40"}));
  ASSERT_THAT(steps, SizeIs(40));
  auto scaler = LossScaler::Create({.dynamic = true,
                                    .initial_scale = std::ldexp(1.0, 32),
                                    .growth_interval = 4,
                                    .hysteresis = 2});
  ASSERT_TRUE(scaler.ok());
  int64_t num_skipped = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("iteration ", steps[i].iteration));
    EXPECT_EQ(steps[i].loss_scale, scaler->scale());
    scaler->Update(steps[i].skipped);
    num_skipped += steps[i].skipped;
    EXPECT_EQ(steps[i].iteration, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(steps[i].consumed_samples, 8 * (static_cast<int64_t>(i) + 1));
    EXPECT_EQ(steps[i].grad_norm.has_value(), !steps[i].skipped);
    ASSERT_TRUE(steps[i].lm_loss.has_value());
    if (i == 0) continue;
    // The learning rate of the coming step: a skipped step does not move it.
    EXPECT_EQ(steps[i].learning_rate == steps[i - 1].learning_rate, steps[i].skipped);
  }
  // 2^32 twice (hysteresis), then half of it a step; grown again after 4 clean steps.
  EXPECT_EQ(steps[0].loss_scale, std::ldexp(1.0, 32));
  EXPECT_EQ(steps[1].loss_scale, std::ldexp(1.0, 32));
  EXPECT_EQ(steps[2].loss_scale, std::ldexp(1.0, 31));
  EXPECT_GE(NumSkippedAtStart(steps), 3);
  EXPECT_LT(num_skipped, 36);
  EXPECT_LT(Losses(steps).back(), 0.9 * Losses(steps).front());  // it has learnt
}

// Nothing but the data position moves in a skipped step: the rest of the run is that of a run
// which passed over the same samples, to the bit.
TEST(Fp16Test, SkippedStepsLeaveParametersMomentsAndScheduleAlone) {
  TrainTestRoot root;
  const std::vector<std::string> settings =
      With(kOverflowing, {"training.train_iters=30", "schedule.lr_warmup_iters=3"});
  const auto steps = Train(root.Spec(settings));
  const int64_t skipped = NumSkippedAtStart(steps);
  ASSERT_GE(skipped, 3);
  ASSERT_LE(skipped, 25);
  const auto without = Train(root.Spec(
      With(settings, {IterationsToSkip(skipped),
                      absl::StrCat("training.initial_loss_scale=", steps[skipped].loss_scale)})));
  ASSERT_THAT(without, SizeIs(30 - skipped));
  ExpectSameSteps(steps, without, skipped + 1);
}

// With the per-token loss a token's scaled gradient does not depend on the number of ranks, and
// sums in fp32 do not overflow: both overflow at the same steps.
TEST(Fp16Test, DataParallelRanksFollowOneRank) {
  TrainTestRoot root;
  const auto settings =
      With(kOverflowing, {"training.train_iters=30", "training.initial_loss_scale=1048576",
                          "training.calculate_per_token_loss=true",
                          "parallel.accumulate_allreduce_grads_in_fp32=true"});
  const auto one = Train(root.Spec(settings));
  ASSERT_GE(NumSkippedAtStart(one), 3);
  ASSERT_LE(NumSkippedAtStart(one), 20);
  for (const char* overlap :
       {"parallel.overlap_grad_reduce=false", "parallel.overlap_grad_reduce=true"}) {
    SCOPED_TRACE(overlap);
    const auto two = Train(root.Spec(
        With(settings, {"resources.world_size=2", "parallel.ddp_bucket_size=2000", overlap})));
    EXPECT_EQ(Scales(two), Scales(one));
    EXPECT_EQ(Skipped(two), Skipped(one));
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(*two[i].lm_loss, *one[i].lm_loss, 2e-2) << i + 1;
      if (one[i].skipped || two[i].skipped) continue;
      EXPECT_NEAR(*two[i].grad_norm, *one[i].grad_norm, 2e-2 * std::max(1.0, *one[i].grad_norm));
    }
  }
}

struct OverflowCase {
  const char* name;
  std::vector<std::string> layout;
  int nan_rank;
  int64_t nan_microbatch;  // one of iteration 2
};

// One rank's overflow is everybody's: all skip, and go on with equal parameters.
TEST(Fp16Test, OverflowOfOneRankSkipsTheStepOnAll) {
  TrainTestRoot root;
  const std::vector<std::string> dp2 = {"resources.world_size=2"};
  const std::vector<std::string> sharded = {
      "resources.world_size=2", "parallel.use_distributed_optimizer=true",
      "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"};
  const std::vector<OverflowCase> cases = {
      {"dp2, first", dp2, 0, 4},
      {"dp2, second", dp2, 1, 4},
      {"sharded optimizer, first", sharded, 0, 4},
      {"sharded optimizer, second", sharded, 1, 4},
      {"tp2",
       {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"},
       /*nan_rank=*/1,
       6},
      {"pp2",
       {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"},
       /*nan_rank=*/1,
       6}};
  for (const OverflowCase& row : cases) {
    SCOPED_TRACE(row.name);
    const auto settings = With(With(kCalm, row.layout), {"training.train_iters=6"});
    const auto steps = Train(root.Spec(With(settings, {kPlugin, "model.forward_step=nan"})),
                             {.nan_rank = row.nan_rank, .nan_microbatch = row.nan_microbatch});
    EXPECT_EQ(Skipped(steps), std::vector<bool>({false, true, false, false, false, false}));
    EXPECT_EQ(Scales(steps), std::vector<double>(6, 1024));  // the hysteresis holds
    ExpectSameSteps(steps, Train(root.Spec(With(settings, {"training.iterations_to_skip=[2]"}))),
                    3);
  }
}

TEST(Fp16Test, ConstantScaleStays) {
  TrainTestRoot root;
  const auto constant = Train(root.Spec({"training.fp16=true", "training.loss_scale=1024"}));
  EXPECT_EQ(Scales(constant), std::vector<double>(6, 1024));
  ExpectSameCurve(constant, Train(root.Spec(kCalm)), 0);
}

TEST(Fp16Test, ConstantScaleThatOverflowsEndsTheJobOrSkipsEachStep) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {"training.fp16=true", "training.loss_scale=4294967296",
                                             "rerun.rerun_elsewhere=false"};
  const auto failed = RunJob(root.Spec(settings));
  EXPECT_EQ(failed[0].exit_code, 16) << "the overflow repeats";
  EXPECT_THAT(failed[0].reason, HasSubstr("iteration 2: result validation"));
  const auto steps = Train(root.Spec(With(settings, {"rerun.check_for_nan_in_loss=false"})));
  EXPECT_EQ(Skipped(steps), std::vector<bool>(6, true));
  EXPECT_EQ(Scales(steps), std::vector<double>(6, std::ldexp(1.0, 32)));
}

TEST(Fp16Test, ResumeKeepsTheScaler) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {"training.fp16=true", "training.loss_scale_window=3",
                                             "training.train_iters=26", "training.hysteresis=2"};
  const auto unbroken = Train(root.Spec(settings));
  for (const int64_t stop : {1, 5, 20}) {
    SCOPED_TRACE(absl::StrCat("stopped at ", stop));
    const std::string folder = root / absl::StrCat("stopped", stop);
    const auto broken =
        With(settings, {absl::StrCat("checkpoint.save=", folder),
                        absl::StrCat("checkpoint.load=", folder), TrainTestRoot::kNoInterval});
    auto steps = Train(root.Spec(With(broken, {absl::StrCat("training.exit_interval=", stop)})));
    ASSERT_THAT(steps, SizeIs(stop));
    for (const StepMessage& step : Train(root.Spec(broken))) steps.push_back(step);
    EXPECT_EQ(Scales(steps), Scales(unbroken));
    EXPECT_EQ(Skipped(steps), Skipped(unbroken));
    EXPECT_EQ(Losses(steps), Losses(unbroken));
  }
}

}  // namespace
}  // namespace muster
