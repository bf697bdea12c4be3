#include "common/schedule/from_spec.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(FromSpecTest, IterationsBecomeSamples) {
  JobSpec spec;
  spec.optimizer.lr = 1e-3;
  spec.schedule.lr_decay_style = "WSD";
  spec.schedule.lr_warmup_iters = 10;
  spec.schedule.lr_decay_iters = 80;
  spec.schedule.lr_wsd_decay_iters = 20;
  ResolvedSpec resolved;
  resolved.global_batch_size = 32;
  resolved.train_iters = 100;
  resolved.train_samples = 3200;
  auto options = LrScheduleOptionsOf(spec, resolved);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->lr_warmup_steps, 320);
  EXPECT_EQ(options->lr_decay_steps, 2560);
  EXPECT_EQ(options->wsd_decay_steps, 640);
  EXPECT_EQ(options->wd_incr_steps, 3200);
  EXPECT_EQ(options->start_wd, 0.01);
  EXPECT_EQ(options->end_wd, 0.01);
  EXPECT_TRUE(LrSchedule::Create(*options).ok());

  spec.schedule.lr_decay_iters.reset();
  spec.schedule.lr_warmup_fraction = 0.01;
  options = LrScheduleOptionsOf(spec, resolved);
  EXPECT_EQ(options->lr_decay_steps, 3200);
  EXPECT_EQ(options->lr_warmup_steps, 32);
}

TEST(FromSpecTest, SampleCountsStaySamples) {
  JobSpec spec;
  spec.training.train_samples = 5000;
  spec.schedule.lr_warmup_samples = 100;
  spec.schedule.lr_wsd_decay_samples = 700;
  ResolvedSpec resolved;
  resolved.global_batch_size = 32;
  resolved.train_iters = 156;
  resolved.train_samples = 5000;
  auto options = LrScheduleOptionsOf(spec, resolved);
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->lr_decay_steps, 5000);
  EXPECT_EQ(options->lr_warmup_steps, 100);
  EXPECT_EQ(options->wsd_decay_steps, 700);
  EXPECT_EQ(options->wd_incr_steps, 5000);
  EXPECT_EQ(SampleCountOptionsOf(spec, resolved).train_samples, 5000);
}

TEST(FromSpecTest, LossScaleFollowsThePrecision) {
  JobSpec spec;
  spec.training.bf16 = true;
  EXPECT_FALSE(LossScalerOptionsOf(spec).dynamic);
  EXPECT_EQ(LossScalerOptionsOf(spec).initial_scale, 1);
  spec.training.bf16 = false;
  spec.training.fp16 = true;
  EXPECT_TRUE(LossScalerOptionsOf(spec).dynamic);
  EXPECT_EQ(LossScalerOptionsOf(spec).initial_scale, 4294967296.0);
  EXPECT_TRUE(LossScaler::Create(LossScalerOptionsOf(spec)).ok());
  spec.training.loss_scale = 128;
  EXPECT_FALSE(LossScalerOptionsOf(spec).dynamic);
  EXPECT_EQ(LossScalerOptionsOf(spec).initial_scale, 128);
}

TEST(FromSpecTest, VirtualStagesFromEachOption) {
  JobSpec spec;
  spec.model.num_layers = 16;
  spec.parallel.pipeline_model_parallel_size = 4;
  EXPECT_EQ(LayerSplitOf(spec)->virtual_pp, 1);
  spec.parallel.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(LayerSplitOf(spec)->virtual_pp, 2);
  spec.parallel.virtual_pipeline_model_parallel_size.reset();
  spec.parallel.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_EQ(LayerSplitOf(spec)->virtual_pp, 4);
  spec.parallel.num_layers_per_virtual_pipeline_stage.reset();
  spec.parallel.pipeline_model_parallel_layout = "Ett|(tt|)*6ttL";
  EXPECT_EQ(LayerSplitOf(spec)->virtual_pp, 2);
  spec.parallel.pipeline_model_parallel_layout = "Ett|ttL";
  EXPECT_FALSE(LayerSplitOf(spec).ok());
}

TEST(FromSpecTest, SyncFunctionsFollowTheOverlapFlags) {
  JobSpec spec;
  spec.parallel.pipeline_model_parallel_size = 2;
  spec.parallel.overlap_grad_reduce = true;
  spec.parallel.overlap_param_gather = true;
  EXPECT_TRUE(ScheduleOptionsOf(spec, 1, 4).has_grad_sync_func);
  EXPECT_FALSE(ScheduleOptionsOf(spec, 1, 4).has_param_sync_func) << "needs virtual stages";
  EXPECT_FALSE(ScheduleOptionsOf(spec, 1, 4).overlap_p2p_comm);
  EXPECT_TRUE(ScheduleOptionsOf(spec, 2, 4).has_param_sync_func);
  EXPECT_TRUE(ScheduleOptionsOf(spec, 2, 4).overlap_p2p_comm);
  EXPECT_FALSE(ScheduleOptionsOf(spec, 2, 4).overlap_p2p_comm_warmup_flush);
  spec.parallel.overlap_p2p_comm_warmup_flush = true;
  EXPECT_TRUE(ScheduleOptionsOf(spec, 2, 4).overlap_p2p_comm_warmup_flush);
  spec.training.num_microbatches_with_partial_activation_checkpoints = 1;
  EXPECT_EQ(ScheduleOptionsOf(spec, 1, 4).num_microbatches_with_partial_activation_checkpoints, 1);
  EXPECT_EQ(
      ForwardOnlyScheduleOptionsOf(spec, 1, 4).num_microbatches_with_partial_activation_checkpoints,
      std::nullopt);
  spec.parallel.align_grad_reduce = false;
  EXPECT_FALSE(ScheduleOptionsOf(spec, 2, 4).has_grad_sync_func);
}

TEST(FromSpecTest, UnitsTravelAtTheirOwnPoints) {
  JobSpec spec;
  spec.parallel.pipeline_model_parallel_size = 2;
  spec.parallel.use_megatron_fsdp = true;
  spec.parallel.overlap_grad_reduce = spec.parallel.overlap_param_gather = true;
  spec.parallel.data_parallel_sharding_strategy = "optim";  // buckets
  EXPECT_TRUE(ScheduleOptionsOf(spec, 2, 4).has_grad_sync_func);
  EXPECT_TRUE(ScheduleOptionsOf(spec, 2, 4).has_param_sync_func);
  spec.parallel.data_parallel_sharding_strategy = "optim_grads";
  EXPECT_FALSE(ScheduleOptionsOf(spec, 2, 4).has_grad_sync_func);
  EXPECT_FALSE(ScheduleOptionsOf(spec, 2, 4).has_param_sync_func);
}

TEST(FromSpecTest, LevelsOfContextParallelRanks) {
  JobSpec spec;
  spec.resources.world_size = 8;
  spec.parallel.context_parallel_size = 4;
  spec.parallel.hierarchical_context_parallel_sizes = {2, 2};
  const auto topology = RankTopology::Create(TopologyOf(spec));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->GroupOf("hcp_0", 3), (std::vector<int>{2, 3}));
  EXPECT_EQ(topology->GroupOf("hcp_1", 3), (std::vector<int>{1, 3}));
}

TEST(FromSpecTest, FlopsOfTheLayersThatHaveExperts) {
  JobSpec spec;
  spec.model.num_layers = 4;
  spec.model.num_experts = 2;
  spec.model.moe_layer_freq = {0, 1, 1, 1};
  EXPECT_EQ(FlopsModelOf(spec, {}).moe_layers, (std::vector<bool>{false, true, true, true}));
  spec.model.moe_layer_freq = {3};
  EXPECT_EQ(FlopsModelOf(spec, {}).moe_layers, (std::vector<bool>{true, false, false, true}));
}

TEST(FromSpecTest, PoliciesAndTopology) {
  JobSpec spec;
  spec.resources.world_size = 16;
  spec.parallel.tensor_model_parallel_size = 2;
  spec.parallel.expert_model_parallel_size = 4;
  spec.parallel.expert_tensor_parallel_size = 1;
  spec.parallel.order = "tp-cp-ep-pp-dp";
  auto topology = RankTopology::Create(TopologyOf(spec));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->dp(), 8);
  EXPECT_EQ(topology->edp(), 4);

  spec.evaluation.eval_interval = 10;
  spec.evaluation.start_eval_at_iter = 20;
  spec.evaluation.at_start = true;
  const EvalScheduleOptions eval = EvalScheduleOptionsOf(spec);
  EXPECT_EQ(eval.eval_interval, 10);
  EXPECT_EQ(eval.eval_iters, 100);
  EXPECT_EQ(eval.start_eval_at_iter, 20);
  EXPECT_TRUE(eval.at_start);

  EXPECT_FALSE(ExitOptionsOf(spec).can_save);
  spec.checkpoint.save = "/somewhere";
  spec.training.exit_interval = 7;
  EXPECT_TRUE(ExitOptionsOf(spec).can_save);
  EXPECT_EQ(ExitOptionsOf(spec).exit_interval, 7);

  spec.training.rampup_batch_size = {8, 8, 300};
  spec.training.micro_batch_size = 2;
  ResolvedSpec resolved;
  resolved.global_batch_size = 32;
  resolved.data_parallel_size = 4;
  auto calculator = MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, resolved));
  ASSERT_TRUE(calculator.ok());
  EXPECT_EQ(calculator->Sizes(0), (BatchSizes{8, 8, 1}));
}

}  // namespace
}  // namespace muster
