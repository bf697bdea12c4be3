// Every parallel layout, from the same weights and data, trains as one process does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

struct Layout {
  int world = 1, tp = 1, pp = 1;
  std::vector<std::string> more;
};

std::vector<std::string> SettingsOf(const Layout& layout) {
  return With({absl::StrCat("resources.world_size=", layout.world),
               absl::StrCat("parallel.tensor_model_parallel_size=", layout.tp),
               absl::StrCat("parallel.pipeline_model_parallel_size=", layout.pp),
               // The vocabulary is padded to the same size in every layout.
               absl::StrCat("model.make_vocab_size_divisible_by=", 8 / layout.tp)},
              layout.more);
}

// A 4-layer model in fp64; its initial weights come from one process's checkpoint.
class LayoutsTest : public testing::Test {
 protected:
  // Settings of a run that begins with those weights.
  std::vector<std::string> FromWeights(const std::vector<std::string>& settings) {
    const auto base = With({"training.fp64=true", "model.num_layers=4",
                            "model.num_attention_heads=4", "training.train_iters=4"},
                           settings);
    const std::string weights = root_ / "weights";
    Train(root_.Spec(With(With(base, SettingsOf({})),
                          {absl::StrCat("checkpoint.save=", weights),
                           "checkpoint.save_interval=1000", "training.exit_interval=1"})));
    return With(base, {absl::StrCat("checkpoint.pretrained_checkpoint=", weights)});
  }
  void ExpectSameAsOneProcess(const Layout& layout, const std::vector<std::string>& settings = {}) {
    const auto from_weights = FromWeights(settings);
    const auto one = Train(root_.Spec(With(from_weights, SettingsOf({}))));
    ASSERT_THAT(one, SizeIs(4));
    const auto many = Train(root_.Spec(With(from_weights, SettingsOf(layout))));
    ExpectSameCurve(many, one, 1e-10);
  }

  TrainTestRoot root_;
};

TEST_F(LayoutsTest, Tensor2) { ExpectSameAsOneProcess({.world = 2, .tp = 2}); }
TEST_F(LayoutsTest, Tensor2WithSequenceParallel) {
  ExpectSameAsOneProcess({.world = 2, .tp = 2, .more = {"parallel.sequence_parallel=true"}});
}
TEST_F(LayoutsTest, Tensor2SwiGluUntied) {
  ExpectSameAsOneProcess({.world = 2, .tp = 2}, {"model.swiglu=true", "model.ffn_hidden_size=64",
                                                 "model.untie_embeddings_and_output_weights=true"});
}
TEST_F(LayoutsTest, Pipeline2) { ExpectSameAsOneProcess({.world = 2, .pp = 2}); }
TEST_F(LayoutsTest, Pipeline2Untied) {
  ExpectSameAsOneProcess({.world = 2, .pp = 2}, {"model.untie_embeddings_and_output_weights=true"});
}
TEST_F(LayoutsTest, Pipeline2Virtual2) {
  ExpectSameAsOneProcess(
      {.world = 2, .pp = 2, .more = {"parallel.virtual_pipeline_model_parallel_size=2"}});
}
TEST_F(LayoutsTest, Pipeline2UnevenStages) {
  ExpectSameAsOneProcess(
      {.world = 2, .pp = 2, .more = {"parallel.decoder_first_pipeline_num_layers=1"}});
}
TEST_F(LayoutsTest, Pipeline2LayoutStringWithAnEmptyStage) {
  ExpectSameAsOneProcess(
      {.world = 2, .pp = 2, .more = {"parallel.pipeline_model_parallel_layout=E|tt||ttL"}});
}
TEST_F(LayoutsTest, Pipeline4WithMiddleStagesThatReadNoData) {
  ExpectSameAsOneProcess({.world = 4, .pp = 4});
}
TEST_F(LayoutsTest, Pipeline4WithMasksForEveryStage) {
  ExpectSameAsOneProcess({.world = 4, .pp = 4},
                         {"data.reset_attention_mask=true", "data.reset_position_ids=true"});
}
TEST_F(LayoutsTest, Pipeline2PerTokenLoss) {
  ExpectSameAsOneProcess({.world = 4, .pp = 2},
                         {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"});
}
TEST_F(LayoutsTest, Data2DistributedOptimizer) {
  ExpectSameAsOneProcess({.world = 2, .more = {"parallel.use_distributed_optimizer=true"}});
}
TEST_F(LayoutsTest, Data2DistributedOptimizerWithOverlap) {
  ExpectSameAsOneProcess(
      {.world = 2,
       .more = {"parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
                "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"}});
}
TEST_F(LayoutsTest, Data4DistributedOptimizerInTwoInstances) {
  ExpectSameAsOneProcess({.world = 4,
                          .more = {"parallel.use_distributed_optimizer=true",
                                   "parallel.num_distributed_optimizer_instances=2"}});
}
TEST_F(LayoutsTest, Tensor2Pipeline2Data2) {
  ExpectSameAsOneProcess({.world = 8, .tp = 2, .pp = 2});
}
TEST_F(LayoutsTest, Tensor2Pipeline2Data2EverythingOn) {
  ExpectSameAsOneProcess(
      {.world = 8,
       .tp = 2,
       .pp = 2,
       .more = {"parallel.sequence_parallel=true",
                "parallel.virtual_pipeline_model_parallel_size=2",
                "parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
                "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"}});
}

// Forward pre-hooks are turned off and on around evaluations, and parameters are whole in
// checkpoints: neither changes what is trained.
TEST_F(LayoutsTest, EvaluationsAndCheckpointsBetweenGathersChangeNothing) {
  ExpectSameAsOneProcess(
      {.world = 4,
       .pp = 2,
       .more = {"parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
                "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000",
                "evaluation.eval_iters=1", "evaluation.eval_interval=1", "evaluation.at_start=true",
                absl::StrCat("checkpoint.save=", root_ / "often"), "checkpoint.save_interval=1"}});
}

// At the start, after steps, at the end, and without any training.
TEST_F(LayoutsTest, EvaluationsAreThoseOfOneProcess) {
  const auto from_weights = FromWeights({});
  const auto evaluations = [&](const Layout& layout, const std::vector<std::string>& more) {
    const auto ranks = RunJob(root_.Spec(With(With(from_weights, SettingsOf(layout)), more)));
    return ReporterOf(ranks).All<EvaluationMessage>();
  };
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"evaluation.at_start=true", "evaluation.eval_interval=2"},
        {"data.full_validation=true"},
        {"training.skip_train=true"}}) {
    SCOPED_TRACE(more.front());
    const auto settings = With({"evaluation.eval_iters=2"}, more);
    const auto one = evaluations({}, settings);
    ASSERT_GE(one.size(), 2u);
    for (Layout layout :
         {Layout{.world = 8, .tp = 2, .pp = 2}, Layout{.world = 2, .pp = 2}, Layout{.world = 4}}) {
      SCOPED_TRACE(layout.world);
      // The spec's rule: full validation goes by single microbatches, too few for virtual stages.
      if (layout.world == 2 && more.front() != "data.full_validation=true")
        layout.more = {"parallel.virtual_pipeline_model_parallel_size=2"};
      const auto many = evaluations(layout, settings);
      ASSERT_EQ(many.size(), one.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(many[i].iteration, one[i].iteration);
        EXPECT_EQ(many[i].split, one[i].split);
        EXPECT_NEAR(many[i].lm_loss, one[i].lm_loss, 1e-10);
      }
    }
  }
}

// 2 microbatches a step and data-parallel coordinate: the 5th is in step 3. Ranks 2 and 3 are the
// last stage.
TEST_F(LayoutsTest, ARejectedLossNamesTheLastStagesRankOnAllRanks) {
  const std::string spec =
      root_.Spec(With(SettingsOf({.world = 4, .pp = 2}),
                      {"plugin=/opt/muster/plugins/none.so", "model.forward_step=nan",
                       "rerun.rerun_elsewhere=false"}));
  const auto ranks = RunJob(spec, {.nan_rank = 3, .nan_microbatch = 5});
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.exit_code, 17) << rank.status;
    EXPECT_THAT(rank.reason, AllOf(HasSubstr("iteration 3"), HasSubstr("on rank 3")));
  }
  EXPECT_THAT(ranks[2].host->All<StepMessage>(), SizeIs(2));
}

}  // namespace
}  // namespace muster
