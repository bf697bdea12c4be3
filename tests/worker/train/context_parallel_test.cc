// Jobs whose sequences are spread over context-parallel ranks train as one process does.

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::SizeIs;

// A 4-layer model with 4 heads in fp64; its initial weights come from one process's checkpoint.
class ContextParallelTest : public testing::Test {
 protected:
  Settings FromWeights(const Settings& settings) {
    const Settings base =
        Settings{"training.fp64=true", "model.num_layers=4", "model.num_attention_heads=4",
                 "training.train_iters=3", "model.make_vocab_size_divisible_by=8"} +
        settings;
    const std::string weights = root_ / "weights";
    Train(root_.Spec(base + Settings{absl::StrCat("checkpoint.save=", weights),
                                     TrainTestRoot::kNoInterval, "training.exit_interval=1"}));
    return base + Settings{absl::StrCat("checkpoint.pretrained_checkpoint=", weights)};
  }
  static Settings Layout(int world, int cp, const Settings& more = {}) {
    return Settings{absl::StrCat("resources.world_size=", world),
                    absl::StrCat("parallel.context_parallel_size=", cp)} +
           more;
  }
  void ExpectSameAsOneProcess(const std::vector<Settings>& layouts, const Settings& settings = {}) {
    const Settings from_weights = FromWeights(settings);
    const auto one = Train(root_.Spec(from_weights));
    ASSERT_THAT(one, SizeIs(3));
    for (const Settings& layout : layouts) {
      SCOPED_TRACE(testing::PrintToString(layout));
      ExpectSameCurve(Train(root_.Spec(from_weights + layout)), one, 1e-10);
    }
  }

  TrainTestRoot root_;
};

const char kTp2[] = "parallel.tensor_model_parallel_size=2";
// With tp 2: the vocabulary is padded to the same size as without.
const char kVocab[] = "model.make_vocab_size_divisible_by=4";
const char kPp2[] = "parallel.pipeline_model_parallel_size=2";

TEST_F(ContextParallelTest, EachFormOfCommunication) {
  ExpectSameAsOneProcess(
      {Layout(2, 2), Layout(2, 2, {"parallel.cp_comm_type=all_gather"}),
       Layout(2, 2, {"parallel.cp_comm_type=a2a"}), Layout(4, 4),
       Layout(4, 4, {"parallel.cp_comm_type=all_gather"}),
       Layout(4, 4, {"parallel.cp_comm_type=a2a"}),
       Layout(
           4, 4,
           {"parallel.cp_comm_type=a2a+p2p", "parallel.hierarchical_context_parallel_sizes=[2,2]"}),
       Layout(4, 4,
              {"parallel.cp_comm_type=[\"p2p\",\"a2a+p2p\",\"all_gather\",\"a2a\"]",
               "parallel.hierarchical_context_parallel_sizes=[2,2]"})});
}

TEST_F(ContextParallelTest, RotaryPositionsWithGroupedQueries) {
  ExpectSameAsOneProcess({Layout(2, 2), Layout(2, 2, {"parallel.cp_comm_type=a2a"}), Layout(4, 4)},
                         {"model.position_embedding_type=rope", "model.num_query_groups=2"});
}

TEST_F(ContextParallelTest, WithTheOtherDimensions) {
  ExpectSameAsOneProcess(
      {Layout(4, 2, {kTp2, kVocab}),
       Layout(4, 2, {kTp2, kVocab, "parallel.sequence_parallel=true"}), Layout(4, 2, {kPp2}),
       Layout(4, 2, {kPp2, "parallel.virtual_pipeline_model_parallel_size=2"}),
       Layout(4, 2,
              {"parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
               "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"}),
       Layout(8, 2, {kTp2, kVocab, kPp2, "parallel.sequence_parallel=true"})});
}

// Masks and positions start anew at documents; every stage needs the mask.
TEST_F(ContextParallelTest, DocumentsApart) {
  ExpectSameAsOneProcess({Layout(2, 2), Layout(2, 2, {"parallel.cp_comm_type=a2a"}),
                          Layout(2, 2, {"parallel.cp_comm_type=all_gather"}), Layout(4, 2, {kPp2})},
                         {"data.reset_attention_mask=true", "data.reset_position_ids=true"});
}

// Ranks with unequal counts of tokens that matter: sums over all of them, then one division.
TEST_F(ContextParallelTest, LossPerToken) {
  ExpectSameAsOneProcess({Layout(2, 2), Layout(4, 2), Layout(4, 2, {kPp2})},
                         {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"});
}

// A loss function that returns its mean: each rank's is its part of the sequences' mean, and the
// gradients' average over ranks is made up for by the factor cp (reference 5.1).
TEST_F(ContextParallelTest, MeanOfALossFunctionWithoutTokens) {
  ExpectSameAsOneProcess(
      {Layout(2, 2), Layout(4, 4, {"parallel.cp_comm_type=a2a"}), Layout(4, 2),
       Layout(4, 2, {kPp2})},
      {"plugin=/opt/muster/plugins/none.so", "model.forward_step=mean", "data.eod_mask_loss=true"});
}

TEST_F(ContextParallelTest, Recomputation) {
  ExpectSameAsOneProcess(
      {Layout(2, 2,
              {"training.recompute_granularity=full", "training.recompute_method=uniform",
               "training.recompute_num_layers=2"}),
       Layout(2, 2, {"training.recompute_granularity=selective"})});
}

TEST_F(ContextParallelTest, EvaluationsAreThoseOfOneProcess) {
  const Settings from_weights =
      FromWeights({}) +
      Settings{"evaluation.eval_iters=2", "evaluation.eval_interval=2", "evaluation.at_start=true"};
  const auto evaluations = [&](const Settings& layout) {
    return ReporterOf(RunJob(root_.Spec(from_weights + layout))).All<EvaluationMessage>();
  };
  const auto one = evaluations({});
  ASSERT_GE(one.size(), 2u);
  const auto many = evaluations(Layout(4, 2, {kPp2}));
  ASSERT_EQ(many.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(many[i].iteration, one[i].iteration);
    EXPECT_NEAR(many[i].lm_loss, one[i].lm_loss, 1e-10);
  }
}

// Nothing that a rank keeps grows with the whole sequence: all but the model falls as 1 / cp.
TEST_F(ContextParallelTest, MemoryOfARankFallsWithItsShareOfTheSequence) {
  const auto peak = [&](int cp, const char* comm_type) {
    const auto ranks = RunJob(root_.Spec(
        Layout(cp, cp,
               {absl::StrCat("parallel.cp_comm_type=", comm_type), "data.dataset_provider=mock",
                "data.data_path=[]", "data.split=100,0,0", "model.seq_length=2048",
                "training.micro_batch_size=1", "training.global_batch_size=1",
                "training.train_iters=1", "model.num_attention_heads=4"})));
    int64_t bytes = 0;
    for (const RankRun& rank : ranks) {
      EXPECT_TRUE(rank.status.ok()) << rank.status;
      bytes = std::max(bytes, rank.peak_memory_bytes);
    }
    return static_cast<double>(bytes);
  };
  const double one = peak(1, "p2p");
  ASSERT_GT(one, 2e6);
  for (const char* comm_type : {"p2p", "all_gather", "a2a"}) {
    SCOPED_TRACE(comm_type);
    EXPECT_LT(peak(2, comm_type), 0.65 * one);
    EXPECT_LT(peak(4, comm_type), 0.4 * one);
  }
}

// Dropout draws differ from one process's, and are the same in every run.
TEST_F(ContextParallelTest, DropoutIsRepeatable) {
  const Settings settings =
      Layout(2, 2, {"model.attention_dropout=0.2", "model.hidden_dropout=0.1"});
  const auto first = Train(root_.Spec(settings));
  ExpectSameCurve(Train(root_.Spec(settings)), first, 0);
  ExpectSameCurve(
      Train(root_.Spec(settings + Settings{"training.recompute_granularity=selective"})), first, 0);
}

}  // namespace
}  // namespace muster
