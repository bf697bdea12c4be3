// The same global batch on 1, 2 and 4 data-parallel ranks trains the same model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::ElementsAre;

struct Case {
  const char* name;
  std::vector<std::string> settings;
  double tolerance;
};

TEST(ParallelTest, DataParallelRanksEqualOneRank) {
  TrainTestRoot root;
  const std::vector<Case> cases = {
      {"fp64", {"training.fp64=true"}, 1e-10},
      {"fp64, per-token loss",
       {"training.fp64=true", "training.calculate_per_token_loss=true", "data.eod_mask_loss=true"},
       1e-10},
      {"fp64, unequal masks", {"training.fp64=true", "data.eod_mask_loss=true"}, 1e-10},
      {"fp32", {}, 1e-5},
      {"fp32, per-token loss",
       {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"},
       1e-5},
      // Rounding of weights to 8 bits makes small differences of fp32 gradients larger.
      {"bf16, fp32 gradients", {"training.bf16=true"}, 5e-2},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    const auto settings = With(row.settings, {"training.train_iters=10"});
    const auto one = Train(root.Spec(settings));
    ASSERT_EQ(one.size(), 10u);
    for (const char* world : {"resources.world_size=2", "resources.world_size=4"}) {
      SCOPED_TRACE(world);
      const auto plain = Train(root.Spec(With(settings, {world})));
      ExpectSameCurve(plain, one, row.tolerance);
      // Overlap changes when the reductions run, not what they add: the same bits.
      const auto overlap =
          Train(root.Spec(With(settings, {world, "parallel.overlap_grad_reduce=true",
                                          "parallel.ddp_bucket_size=2000"})));
      ExpectSameCurve(overlap, plain, 0);
    }
  }
}

// With masks that differ the two modes optimise different objectives (reference 5.1), so the
// equality above would miss a trainer that ignored the flag.
TEST(ParallelTest, PerTokenLossIsAnotherObjectiveWhenMasksDiffer) {
  TrainTestRoot root;
  const auto mean_of_means = Train(root.Spec({"data.eod_mask_loss=true"}));
  const auto per_token =
      Train(root.Spec({"data.eod_mask_loss=true", "training.calculate_per_token_loss=true"}));
  // The first loss is reported before any update, token-weighted in both.
  EXPECT_EQ(Losses(mean_of_means)[0], Losses(per_token)[0]);
  EXPECT_NE(GradNorms(mean_of_means)[0], GradNorms(per_token)[0]);
}

TEST(ParallelTest, MoreMicrobatchesOfTheSameGlobalBatchGiveTheSameCurve) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {
      "training.fp64=true", "training.calculate_per_token_loss=true", "data.eod_mask_loss=true"};
  const auto whole = Train(root.Spec(With(settings, {"training.micro_batch_size=8"})));
  const auto halves = Train(root.Spec(With(settings, {"training.micro_batch_size=4"})));
  const auto singles =
      Train(root.Spec(With(settings, {"training.micro_batch_size=1", "resources.world_size=2"})));
  ExpectSameCurve(halves, whole, 1e-10);
  ExpectSameCurve(singles, whole, 1e-10);
}

// G9.1's rule at a small size: start 2, increment 2, over 12 samples, to 8: 3 stages of 4 samples.
TEST(ParallelTest, RampUpChangesTheBatchSizeAndSavesWhenItGrows) {
  TrainTestRoot root;
  const std::vector<std::string> settings = {
      "training.rampup_batch_size=[2,2,12]", "training.micro_batch_size=1",
      "training.train_samples=40",           absl::StrCat("checkpoint.save=", root / "ckpt"),
      "checkpoint.save_interval=1000",       "training.train_iters=null"};
  for (const char* world : {"resources.world_size=1", "resources.world_size=2"}) {
    SCOPED_TRACE(world);
    const auto ranks = RunJob(root.Spec(With(settings, {world})));
    const auto steps = StepsOf(ranks);
    std::vector<int64_t> sizes, consumed, saved;
    for (const StepMessage& step : steps) {
      sizes.push_back(step.global_batch_size);
      consumed.push_back(step.consumed_samples);
    }
    // consumed 0, 2: 2; at 4: 2 + 2*(4/4) = 4; at 8: 6; at 14 > 12: 8. The 26 samples that are left
    // then are 3 whole batches.
    EXPECT_THAT(sizes, ElementsAre(2, 2, 4, 6, 8, 8, 8));
    EXPECT_THAT(consumed, ElementsAre(2, 4, 8, 14, 22, 30, 38));
    for (const CheckpointMessage& message : ranks[0].host->All<CheckpointMessage>()) {
      EXPECT_TRUE(message.ok) << message.error;
      saved.push_back(message.iteration);
    }
    EXPECT_THAT(saved, ElementsAre(2, 3, 4, 7));
  }
}

}  // namespace
}  // namespace muster
