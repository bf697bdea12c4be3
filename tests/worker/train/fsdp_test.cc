// Jobs with fully sharded data parallelism: the curves of one process and of the distributed
// optimizer, and what goes with a job (evaluation, checkpoints, norms, precision).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::SizeIs;

Settings Megatron(const std::string& strategy) {
  return {"parallel.use_megatron_fsdp=true",
          absl::StrCat("parallel.data_parallel_sharding_strategy=", strategy)};
}
Settings Torch(bool reshard) {
  return {"parallel.use_torch_fsdp2=true", "model.untie_embeddings_and_output_weights=true",
          absl::StrCat("parallel.torch_fsdp2_reshard_after_forward=", reshard ? "true" : "false")};
}

struct Strategy {
  const char* name;
  Settings settings;
};
const std::vector<Strategy>& Strategies() {
  static const auto& all = *new std::vector<Strategy>{
      {"no_shard", Megatron("no_shard")},
      {"optim", Megatron("optim")},
      {"optim_grads", Megatron("optim_grads")},
      {"optim_grads_params", Megatron("optim_grads_params")},
      {"fsdp2", Torch(true)},
      {"fsdp2_no_reshard", Torch(false)},
  };
  return all;
}

Settings World(int world, int tp = 1) {
  return {absl::StrCat("resources.world_size=", world),
          absl::StrCat("parallel.tensor_model_parallel_size=", tp),
          absl::StrCat("model.make_vocab_size_divisible_by=", 8 / tp)};
}

class FsdpTest : public testing::Test {
 protected:
  // Settings of a run of a 3-layer model that begins with weights of one process.
  Settings FromWeights(const Settings& settings) {
    const Settings base =
        Settings{"model.num_layers=3", "model.num_attention_heads=4", "training.train_iters=4"} +
        settings;
    const std::string weights = root_ / absl::StrCat("weights", ++num_weights_);
    Train(root_.Spec(base + World(1) +
                     Settings{absl::StrCat("checkpoint.save=", weights), "model.hidden_dropout=0",
                              "model.attention_dropout=0", TrainTestRoot::kNoInterval,
                              "training.exit_interval=1"}));
    return base + Settings{absl::StrCat("checkpoint.pretrained_checkpoint=", weights)};
  }
  std::vector<StepMessage> Run(const Settings& settings) { return Train(root_.Spec(settings)); }

  // Curve of `settings` in each strategy against that of one process.
  void ExpectOneProcess(const Settings& world, const Settings& settings) {
    for (const bool untied : {false, true}) {
      const Settings tying = {
          absl::StrCat("model.untie_embeddings_and_output_weights=", untied ? "true" : "false")};
      const Settings from = FromWeights(Settings{"training.fp64=true"} + settings + tying);
      const auto one = Run(from + World(1));
      ASSERT_THAT(one, SizeIs(4));
      for (const Strategy& strategy : Strategies()) {
        if (untied != (strategy.name[0] == 'f')) continue;  // torch's are untied only
        SCOPED_TRACE(strategy.name);
        ExpectSameCurve(Run(from + world + strategy.settings), one, 1e-10);
      }
    }
  }

  TrainTestRoot root_;
  int num_weights_ = 0;
};

// Of eight sequences: four microbatches on two ranks, two on four.
TEST_F(FsdpTest, DataParallel2) { ExpectOneProcess(World(2), {"training.micro_batch_size=1"}); }
TEST_F(FsdpTest, DataParallel4) { ExpectOneProcess(World(4), {"training.micro_batch_size=1"}); }
TEST_F(FsdpTest, Tensor2DataParallel2) {
  ExpectOneProcess(World(4, 2), {"training.micro_batch_size=1"});
}
TEST_F(FsdpTest, RecomputedLayers) {
  ExpectOneProcess(World(2),
                   {"training.recompute_granularity=full", "training.recompute_method=uniform",
                    "training.recompute_num_layers=2"});
}
TEST_F(FsdpTest, PerTokenLoss) {
  ExpectOneProcess(World(2), {"training.calculate_per_token_loss=true", "data.eod_mask_loss=true"});
}
TEST_F(FsdpTest, LlamaWithSgd) {
  ExpectOneProcess(World(2),
                   {"model.position_embedding_type=rope", "model.normalization=RMSNorm",
                    "model.swiglu=true", "model.ffn_hidden_size=64", "model.add_bias_linear=false",
                    "model.num_query_groups=2", "optimizer.optimizer=sgd", "optimizer.lr=0.05"});
}

TEST_F(FsdpTest, PipelineStagesAndVirtualOnes) {
  const Settings from = FromWeights({"training.fp64=true", "model.num_layers=4"});
  const auto one = Run(from + World(1));
  for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
    for (const Settings& pipeline :
         {Settings{"parallel.pipeline_model_parallel_size=2"},
          Settings{"parallel.pipeline_model_parallel_size=2",
                   "parallel.virtual_pipeline_model_parallel_size=2"},
          Settings{"parallel.pipeline_model_parallel_size=2",
                   "parallel.virtual_pipeline_model_parallel_size=2",
                   "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"}}) {
      SCOPED_TRACE(absl::StrCat(strategy, " ", pipeline.back()));
      ExpectSameCurve(Run(from + World(4) + pipeline + Megatron(strategy)), one, 1e-10);
    }
  }
}

TEST_F(FsdpTest, ContextParallel) {
  const Settings from = FromWeights({"training.fp64=true"});
  const auto one = Run(from + World(1));
  const Settings cp2 = {"parallel.context_parallel_size=2"};
  for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(strategy);
    ExpectSameCurve(Run(from + World(2) + cp2 + Megatron(strategy)), one, 1e-10);
    ExpectSameCurve(Run(from + World(4) + cp2 + Megatron(strategy)), one, 1e-10);
    ExpectSameCurve(Run(from + World(4, 2) + cp2 + Megatron(strategy)), one, 1e-10);
    ExpectSameCurve(Run(from + World(4) + cp2 + Megatron(strategy) +
                        Settings{"parallel.pipeline_model_parallel_size=2",
                                 "parallel.decoder_first_pipeline_num_layers=1"}),
                    one, 1e-10);
  }
}

// Experts with groups of their own: two ranks each, and alone; layers with and without experts.
TEST_F(FsdpTest, Experts) {
  const Settings model = {"training.fp64=true",
                          "model.num_experts=4",
                          "model.swiglu=true",
                          "model.add_bias_linear=false",
                          "model.ffn_hidden_size=16",
                          "model.moe_aux_loss_coeff=0.02",
                          "model.untie_embeddings_and_output_weights=true"};
  for (const Settings& form :
       {Settings{}, Settings{"model.moe_grouped_gemm=true", "model.moe_layer_freq=[1,0,1]",
                             "model.moe_token_dispatcher_type=alltoall"}}) {
    const Settings from = FromWeights(model + form);
    const auto one = Run(from + World(1));
    for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
      for (const int ep : {1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(strategy, " ep", ep));
        ExpectSameCurve(Run(from + World(4) + Megatron(strategy) +
                            Settings{absl::StrCat("parallel.expert_model_parallel_size=", ep)}),
                        one, 1e-10);
      }
    }
    ExpectSameCurve(Run(from + World(2) + Settings{"parallel.use_torch_fsdp2=true"}), one, 1e-10);
  }
}

TEST_F(FsdpTest, HybridOfInstancesAndOuterSharding) {
  const Settings from = FromWeights({"training.fp64=true", "training.micro_batch_size=1"});
  const auto one = Run(from + World(1));
  const Settings hybrid = {"parallel.use_distributed_optimizer=true",
                           "parallel.num_distributed_optimizer_instances=2"};
  for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(strategy);
    ExpectSameCurve(Run(from + World(4) + Megatron(strategy) + hybrid), one, 1e-10);
  }
  ExpectSameCurve(Run(from + World(4) + Megatron("optim_grads_params") + hybrid +
                      Settings{"parallel.outer_dp_sharding_strategy=optim"}),
                  one, 1e-10);
}

// One microbatch a step: the same sums in the same order as the distributed optimizer's.
TEST_F(FsdpTest, WithOneMicrobatchTheBitsAreThoseOfTheDistributedOptimizer) {
  for (const Settings& precision :
       {Settings{}, Settings{"training.fp64=true"}, Settings{"training.bf16=true"}}) {
    for (const int world : {2, 4}) {
      const Settings base =
          World(world) + precision +
          Settings{"model.num_layers=3", "model.hidden_dropout=0.1", "model.attention_dropout=0.1",
                   "model.num_attention_heads=4", "training.global_batch_size=4",
                   // The norm is added up in another order.
                   "optimizer.clip_grad=0", absl::StrCat("training.micro_batch_size=", 4 / world),
                   "model.untie_embeddings_and_output_weights=true"};
      const auto expected = Run(base + Settings{"parallel.use_distributed_optimizer=true"});
      const auto ddp = Run(base);
      EXPECT_EQ(Losses(ddp), Losses(expected));
      for (const Strategy& strategy : Strategies()) {
        SCOPED_TRACE(
            absl::StrCat(strategy.name, " ", world, precision.empty() ? "" : precision[0]));
        const auto got = Run(base + strategy.settings);
        EXPECT_EQ(Losses(got), Losses(expected));
        ExpectSameCurve(got, expected, 1e-12);
      }
    }
  }
}

// Dropout draws differ between one process and several ranks, not between wrappers.
TEST_F(FsdpTest, DropoutWithFourMicrobatches) {
  const Settings base =
      World(2) +
      Settings{"training.fp64=true",          "model.num_layers=3",
               "model.hidden_dropout=0.1",    "model.attention_dropout=0.1",
               "training.micro_batch_size=1", "model.untie_embeddings_and_output_weights=true"};
  const auto expected = Run(base);
  for (const Strategy& strategy : Strategies()) {
    SCOPED_TRACE(strategy.name);
    ExpectSameCurve(Run(base + strategy.settings), expected, 1e-10);
  }
}

TEST_F(FsdpTest, ResumesBitForBitAndInEveryOtherStrategy) {
  const Settings base = World(2) + Settings{"training.bf16=true",
                                            "model.num_layers=3",
                                            "model.hidden_dropout=0.1",
                                            "training.train_iters=4",
                                            "optimizer.clip_grad=0",
                                            "training.global_batch_size=4",
                                            "model.untie_embeddings_and_output_weights=true",
                                            TrainTestRoot::kNoInterval};
  for (const Strategy& saver : Strategies()) {
    SCOPED_TRACE(saver.name);
    const Settings folder = {absl::StrCat("checkpoint.save=", root_ / saver.name)};
    const auto unbroken = Run(base + saver.settings);
    Run(base + saver.settings + folder + Settings{"training.exit_interval=2"});
    for (const Strategy& loader : Strategies()) {
      SCOPED_TRACE(loader.name);
      const auto resumed = Run(base + loader.settings +
                               Settings{absl::StrCat("checkpoint.load=", root_ / saver.name)});
      ASSERT_THAT(resumed, SizeIs(2));
      EXPECT_EQ(resumed[0].iteration, 3);
      const std::vector<double> losses = Losses(unbroken);
      EXPECT_EQ(Losses(resumed), std::vector<double>(losses.end() - 2, losses.end()));
    }
  }
}

TEST_F(FsdpTest, EvaluationsCheckpointsAndNormsOnTheWayChangeNothing) {
  const Settings base = World(2) + Settings{"model.num_layers=3", "training.log_params_norm=true",
                                            "training.log_num_zeros_in_grad=true",
                                            "model.untie_embeddings_and_output_weights=true"};
  const auto plain = Run(base);
  for (const Strategy& strategy : Strategies()) {
    SCOPED_TRACE(strategy.name);
    Settings extra = {
        "evaluation.at_start=true", "evaluation.eval_interval=2", "evaluation.eval_iters=1",
        absl::StrCat("checkpoint.save=", root_ / strategy.name), "checkpoint.save_interval=3"};
    // Where parameters are sharded there are no replicas to compare.
    const std::string name = strategy.name;
    if (name != "optim_grads_params" && name[0] != 'f')
      extra.push_back("training.check_weight_hash_across_dp_replicas_interval=2");
    const auto ranks = RunJob(root_.Spec(base + strategy.settings + extra));
    const auto steps = StepsOf(ranks);
    ExpectSameCurve(steps, plain, 1e-4);
    EXPECT_THAT(ReporterOf(ranks).All<EvaluationMessage>(), testing::Not(testing::IsEmpty()));
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i].params_norm.value(), plain[i].params_norm.value(), 1e-4);
      EXPECT_EQ(steps[i].num_zeros.has_value(), plain[i].num_zeros.has_value());
    }
  }
}

TEST_F(FsdpTest, RandomInitialWeightsBecomeThoseOfTheFirstRank) {
  const Settings base = World(2) + Settings{"model.num_layers=2", "training.fp64=true",
                                            "training.data_parallel_random_init=true",
                                            "model.untie_embeddings_and_output_weights=true"};
  const auto expected = Run(base);
  for (const Strategy& strategy : Strategies()) {
    SCOPED_TRACE(strategy.name);
    ExpectSameCurve(Run(base + strategy.settings), expected, 1e-10);
  }
}

TEST_F(FsdpTest, Fp16OverflowsSkipTheSameSteps) {
  const Settings base =
      World(2) + Settings{"training.fp16=true", "training.initial_loss_scale=524288",
                          "training.hysteresis=1", "training.train_iters=8"};
  const auto expected = Run(base);
  EXPECT_TRUE(Skipped(expected)[0]);
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(strategy);
    const auto got = Run(base + Megatron(strategy));
    EXPECT_EQ(Skipped(got), Skipped(expected));
    EXPECT_EQ(Scales(got), Scales(expected));
  }
}

TEST_F(FsdpTest, ANanIsFoundInTheGradientsOfAUnit) {
  for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
    const auto ranks =
        RunJob(root_.Spec(World(2) + Megatron(strategy) +
                          Settings{"plugin=/opt/muster/plugins/none.so", "model.forward_step=nan",
                                   "rerun.rerun_elsewhere=false"}),
               {.nan_rank = 1, .nan_microbatch = 3});
    EXPECT_EQ(ranks[1].exit_code, 17);
    EXPECT_THAT(ranks[0].reason, testing::HasSubstr("result validation failed"));
  }
}

}  // namespace
}  // namespace muster
