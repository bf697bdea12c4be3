// Jobs with mixtures of experts: layouts train as one process does, and checkpoints move between
// them.

#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"
#include "tests/worker/train/whole_tensors.h"

namespace muster {
namespace {

using testing::SizeIs;

// fp64: where two experts score alike, rounding would choose.
const Settings kModel = {"training.fp64=true",           "model.num_experts=4",
                         "model.num_attention_heads=4",  "model.moe_aux_loss_coeff=0.02",
                         "model.moe_z_loss_coeff=0.001", "model.swiglu=true",
                         "model.add_bias_linear=false",  "model.ffn_hidden_size=16",
                         "training.train_iters=4",       "checkpoint.save_interval=1000"};
const Settings kSigmoid = {"model.moe_router_score_function=sigmoid",
                           "model.moe_router_enable_expert_bias=true",
                           "model.moe_router_bias_update_rate=0.05"};
const Settings kGrouped = {"model.moe_grouped_gemm=true",
                           "model.moe_token_dispatcher_type=alltoall"};
const Settings kShared = {"model.moe_shared_expert_intermediate_size=8",
                          "model.moe_shared_expert_gate=true"};
const Settings kOverlap = {"parallel.use_distributed_optimizer=true",
                           "parallel.overlap_grad_reduce=true",
                           "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=500"};

Settings World(int size) { return {absl::StrCat("resources.world_size=", size)}; }
Settings Ep(int size) { return {absl::StrCat("parallel.expert_model_parallel_size=", size)}; }
Settings Etp(int size) { return {absl::StrCat("parallel.expert_tensor_parallel_size=", size)}; }
// The vocabulary is padded to the same size as with one rank.
Settings Tp2() {
  return {"parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
          "model.make_vocab_size_divisible_by=4"};
}
Settings Pp2() { return {"parallel.pipeline_model_parallel_size=2"}; }
const Settings kOne = {"model.make_vocab_size_divisible_by=8"};

class MoeTrainTest : public testing::Test {
 protected:
  // Settings of a run that begins with one process's weights.
  Settings FromWeights(const Settings& settings) {
    const Settings base = kModel + kOne + settings;
    Train(root_.Spec(base + Settings{absl::StrCat("checkpoint.save=", root_ / "weights"),
                                     "training.exit_interval=1"}));
    return base + Settings{absl::StrCat("checkpoint.pretrained_checkpoint=", root_ / "weights")};
  }
  void ExpectSameAsOneProcess(const Settings& layout, const Settings& settings = {}) {
    const Settings from_weights = FromWeights(settings);
    const auto one = Train(root_.Spec(from_weights));
    ASSERT_THAT(one, SizeIs(4));
    ExpectSameCurve(Train(root_.Spec(from_weights + layout)), one, 1e-10);
  }
  // Trains to iteration 3 (from `load`, if it is there) and returns the checkpoint's folder.
  std::string Save(const std::string& name, const Settings& settings, const std::string& load) {
    Settings all = kModel + kOne + kSigmoid + settings + Settings{"training.train_iters=3"};
    all.push_back(absl::StrCat("checkpoint.save=", root_ / name));
    if (!load.empty()) all.push_back(absl::StrCat("checkpoint.load=", load));
    EXPECT_THAT(Train(root_.Spec(all)), SizeIs(load.empty() ? 3 : 0));
    return root_ / name;
  }
  void ExpectReshards(const Settings& from, const Settings& to) {
    const std::string first = Save("first", from, "");
    const std::string second = Save("second", to, first);
    const auto a = WholeTensors(first + "/iter_0000003");
    const auto b = WholeTensors(second + "/iter_0000003");
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) {
      ASSERT_TRUE(b.contains(name)) << name;
      EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
    }
    const std::string expert = "decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight";
    EXPECT_TRUE(a.contains(expert));
    EXPECT_TRUE(a.contains("optimizer.exp_avg." + expert));
    EXPECT_GT(a.at("decoder.layers.1.mlp.router.expert_bias").abs().max().item<double>(), 0);
  }

  TrainTestRoot root_;
};

TEST_F(MoeTrainTest, Expert2) { ExpectSameAsOneProcess(World(2) + Ep(2)); }
TEST_F(MoeTrainTest, Expert4SigmoidGrouped) {
  ExpectSameAsOneProcess(World(4) + Ep(4), kSigmoid + kGrouped);
}
TEST_F(MoeTrainTest, Expert2ExpertTensor2Shared) {
  ExpectSameAsOneProcess(World(4) + Ep(2) + Etp(2), kShared);
}
TEST_F(MoeTrainTest, Data2Expert2PerTokenLossWithDropping) {
  ExpectSameAsOneProcess(World(4) + Ep(2), Settings{"training.calculate_per_token_loss=true",
                                                    "data.eod_mask_loss=true",
                                                    "model.moe_expert_capacity_factor=1.0"});
}
TEST_F(MoeTrainTest, Data2Expert2DistributedOptimizerWithOverlap) {
  ExpectSameAsOneProcess(World(4) + Ep(2) + kOverlap, kSigmoid + kGrouped);
}
// An expert's gradient group has one member in each instance.
TEST_F(MoeTrainTest, Data2Expert2TwoOptimizerInstances) {
  ExpectSameAsOneProcess(World(4) + Ep(2) +
                         Settings{"parallel.use_distributed_optimizer=true",
                                  "parallel.num_distributed_optimizer_instances=2"});
}
TEST_F(MoeTrainTest, Tensor2Expert2SequenceParallelShared) {
  ExpectSameAsOneProcess(World(4) + Tp2() + Ep(2),
                         kShared + kGrouped + Settings{"model.moe_shared_expert_overlap=true"});
}
TEST_F(MoeTrainTest, Tensor2WholeExperts) {
  ExpectSameAsOneProcess(World(4) + Tp2() + Ep(2) + Etp(1), kSigmoid);
}
TEST_F(MoeTrainTest, Pipeline2Expert2Recomputed) {
  ExpectSameAsOneProcess(
      World(4) + Pp2() + Ep(2),
      kSigmoid + Settings{"training.recompute_granularity=full",
                          "training.recompute_method=uniform", "training.recompute_num_layers=1"});
}
TEST_F(MoeTrainTest, Context2Expert2) {
  ExpectSameAsOneProcess(World(2) + Ep(2) + Settings{"parallel.context_parallel_size=2"}, kGrouped);
}
TEST_F(MoeTrainTest, Context2Data2Expert4PerTokenLossSigmoid) {
  ExpectSameAsOneProcess(
      World(4) + Ep(4) + Settings{"parallel.context_parallel_size=2"},
      kSigmoid + Settings{"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"});
}
// Counts of the running mean are over the step's microbatches so far: the same with as many of
// them.
TEST_F(MoeTrainTest, GlobalAndSequenceLossesOfSplitTokens) {
  ExpectSameAsOneProcess(World(2) + Tp2() + Ep(2) + Etp(1),
                         Settings{"model.moe_router_load_balancing_type=[\"global_aux_loss\","
                                  "\"seq_aux_loss\"]",
                                  "model.moe_aux_loss_coeff=[0.02,0.01]"});
}
// Of the four chunks only the last has experts; the other stage takes part in what all do.
TEST_F(MoeTrainTest, VirtualStagesWithExpertsInOneOfThem) {
  ExpectSameAsOneProcess(
      World(4) + Pp2() + Ep(2) + Settings{"parallel.virtual_pipeline_model_parallel_size=2"},
      kSigmoid + Settings{"model.num_layers=4", "model.moe_layer_freq=[0,0,0,1]"});
}
TEST_F(MoeTrainTest, MuonOnExpertMatrices) {
  ExpectSameAsOneProcess(
      World(4) + Ep(2) + Etp(2),
      Settings{"optimizer.optimizer=muon", "optimizer.muon_matmul_precision=highest"});
}
TEST_F(MoeTrainTest, DistMuonDealsExpertsOutOverTheirOwnGroup) {
  ExpectSameAsOneProcess(
      World(4) + Ep(2) + Settings{"optimizer.optimizer=dist_muon"},
      Settings{"optimizer.optimizer=muon", "optimizer.muon_matmul_precision=highest"});
}

TEST_F(MoeTrainTest, EvaluationsAreThoseOfOneProcess) {
  const Settings from_weights =
      FromWeights(Settings{"evaluation.eval_iters=2", "evaluation.eval_interval=2"});
  const auto evaluations = [&](const Settings& layout) {
    const auto ranks = RunJob(root_.Spec(from_weights + layout));
    return ReporterOf(ranks).All<EvaluationMessage>();
  };
  const auto one = evaluations({}), two = evaluations(World(2) + Ep(2));
  ASSERT_EQ(one.size(), two.size());
  ASSERT_GE(one.size(), 2u);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i].lm_loss, one[i].lm_loss, 1e-10);
}

TEST_F(MoeTrainTest, OneProcessLoadsWhatExpert2Saved) { ExpectReshards(World(2) + Ep(2), {}); }
TEST_F(MoeTrainTest, Expert2Tensor2LoadsWhatOneProcessSaved) {
  ExpectReshards({}, World(4) + Tp2() + Ep(2));
}
TEST_F(MoeTrainTest, Pipeline2LoadsWhatADistributedOptimizerOfExpertsSaved) {
  ExpectReshards(World(4) + Ep(2) + kOverlap, World(4) + Pp2() + Ep(2));
}

TEST_F(MoeTrainTest, AResumedRunIsTheUnbrokenOneBitForBit) {
  const Settings job = kModel + kSigmoid + kGrouped + kOverlap + World(4) + Ep(2);
  const auto unbroken = Train(root_.Spec(job));
  const Settings folder = {absl::StrCat("checkpoint.save=", root_ / "broken"),
                           absl::StrCat("checkpoint.load=", root_ / "broken")};
  auto steps = Train(root_.Spec(job + folder + Settings{"training.exit_interval=2"}));
  for (const StepMessage& step : Train(root_.Spec(job + folder))) steps.push_back(step);
  ExpectSameCurve(steps, unbroken, 0);
}

// One rank's overflow is every rank's skipped step, whoever holds the expert.
TEST_F(MoeTrainTest, Fp16SkipsTheSameStepsInEveryLayout) {
  Settings fp16 = kModel + kOne + World(4) +
                  Settings{"training.fp64=false", "training.fp16=true",
                           "training.initial_loss_scale=4294967296", "training.train_iters=6"};
  const auto dense = Train(root_.Spec(fp16)), experts = Train(root_.Spec(fp16 + Ep(4)));
  EXPECT_EQ(Skipped(experts), Skipped(dense));
  EXPECT_EQ(Scales(experts), Scales(dense));
  EXPECT_THAT(Skipped(experts), testing::Contains(true));
}

// Each data-parallel rank draws its own weights; experts take those of the first of their replicas.
TEST_F(MoeTrainTest, RandomInitialWeightsOfReplicasBecomeThoseOfTheFirst) {
  EXPECT_THAT(
      Train(root_.Spec(kModel + World(4) + Ep(2) +
                       Settings{"training.data_parallel_random_init=true",
                                "training.check_weight_hash_across_dp_replicas_interval=1"})),
      SizeIs(4));
}

}  // namespace
}  // namespace muster
