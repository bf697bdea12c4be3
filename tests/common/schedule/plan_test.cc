#include "common/schedule/plan.h"

#include <string>

#include "common/schedule/activation_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan_fixture.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(PlanTest, OneRank) {
  const Job job = Gpt2();
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->total_parameters, 124475904);
  ASSERT_EQ(plan->stages.size(), 1u);
  const RankPlan& rank = plan->largest();
  EXPECT_EQ(rank.parameters, 124475904);
  EXPECT_EQ(rank.parameter_bytes, 124475904LL * 4);
  EXPECT_EQ(rank.gradient_bytes, 124475904LL * 4);
  EXPECT_EQ(rank.optimizer_bytes, 124475904LL * 8);
  EXPECT_EQ(plan->num_microbatches, 2);
  EXPECT_EQ(plan->bubble_fraction, 0);
  // T = 8192 tokens; 6 T (products of a layer: 12 x 7077888, logits) + 6 x 12 x 768 T s.
  EXPECT_EQ(plan->flops_per_iteration,
            8192.0 * 6 * (12 * 7077888.0 + 768 * 50304.0) + 8 * 1024.0 * 1024 * 6 * 768 * 12);
  EXPECT_EQ(rank.total_bytes(), rank.parameter_bytes + rank.gradient_bytes + rank.optimizer_bytes +
                                    rank.activation_bytes);
}

TEST(PlanTest, SnapshotsAreThreeTimesWhatARankUpdates) {
  Job job = Llama1B();  // bf16: 2 bytes of weights, 12 of main parameters and moments
  const int64_t n = 1235814400;
  job.spec.resources.world_size = job.resolved.data_parallel_size = 4;
  job.spec.recovery.snapshot_interval = 10;
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].snapshot_bytes, 3 * 14 * n);
  EXPECT_EQ(plan->stages[0].snapshot_copy_bytes, 3 * 14 * n);
  job.spec.parallel.use_distributed_optimizer = true;
  plan = MakePlan(job.spec, job.resolved);
  EXPECT_EQ(plan->stages[0].snapshot_bytes, 3 * 14 * n / 4);
  job.spec.recovery.snapshot_interval = 0;
  plan = MakePlan(job.spec, job.resolved);
  EXPECT_EQ(plan->stages[0].snapshot_bytes, 0);
  EXPECT_EQ(plan->stages[0].snapshot_copy_bytes, 0);
  job.spec.recovery.snapshot_interval = 10;
  job.spec.resources.world_size = job.resolved.data_parallel_size = 1;
  plan = MakePlan(job.spec, job.resolved);
  EXPECT_EQ(plan->stages[0].snapshot_bytes, 3 * 14 * n);
  EXPECT_EQ(plan->stages[0].snapshot_copy_bytes, 0);  // there is no other rank
}

TEST(PlanTest, ActivationsOfALayerFollowThePublishedFormula) {
  // Korthikanti et al. equation 1 without dropout: s b h (34 - 2) bytes in 16 bits. On top, what
  // norms (mean, 1 / deviation) and fused attention (log-sum-exp instead of the scores) keep in
  // fp32.
  Job job = Gpt2();
  job.spec.training.bf16 = true;
  job.spec.model.attention_dropout = job.spec.model.hidden_dropout = 0;
  auto layer_bytes = [&] {
    auto bytes = [&](int64_t num_layers) {
      job.spec.model.num_layers = num_layers;
      auto plan = MakePlan(job.spec, job.resolved);
      EXPECT_TRUE(plan.ok()) << plan.status();
      return plan->stages[0].activation_bytes;
    };
    return bytes(12) - bytes(11);
  };
  const int64_t sb = 1024 * 4, h = 768, heads = 12;
  EXPECT_EQ(layer_bytes(), sb * (32 * h + 16 + 4 * heads));
  job.spec.parallel.tensor_model_parallel_size = 2;  // equation 2: 8 h is not split
  EXPECT_EQ(layer_bytes(), sb * (8 * h + 16 + (24 * h + 4 * heads) / 2));
  job.spec.parallel.sequence_parallel = true;  // equation 4
  EXPECT_EQ(layer_bytes(), sb * (32 * h + 16 + 4 * heads) / 2);
  // With dropout scores are kept: softmax in fp32, mask and product in 16 bits; so are two masks.
  job.spec.model.attention_dropout = job.spec.model.hidden_dropout = 0.1;
  EXPECT_EQ(layer_bytes(), sb * (36 * h + 16 + 8 * heads * 1024) / 2);
  job.spec.training.recompute_granularity = "selective";
  EXPECT_EQ(layer_bytes(), sb * (36 * h + 16) / 2);
  job.spec.training.recompute_granularity = "full";
  EXPECT_EQ(layer_bytes(), sb * 2 * h / 2);
}

TEST(PlanTest, HalfPrecisionKeepsMainParameters) {
  Job job = Llama1B();
  const int64_t n = 1235814400;
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].parameter_bytes, 2 * n);
  EXPECT_EQ(plan->stages[0].gradient_bytes, 4 * n);
  EXPECT_EQ(plan->stages[0].optimizer_bytes, 12 * n);
  job.resolved.grads_in_fp32 = false;
  job.spec.optimizer.optimizer = "sgd";
  plan = MakePlan(job.spec, job.resolved);
  EXPECT_EQ(plan->stages[0].gradient_bytes, 2 * n);
  EXPECT_EQ(plan->stages[0].optimizer_bytes, 8 * n);
}

TEST(PlanTest, ShardingDividesWhatItShards) {
  Job job = Llama1B();
  job.spec.resources.world_size = 8;
  job.resolved.data_parallel_size = 8;
  const int64_t n = 1235814400;
  job.spec.parallel.use_distributed_optimizer = true;
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].parameter_bytes, 2 * n);
  EXPECT_EQ(plan->stages[0].optimizer_bytes, 12 * n / 8);
  job.spec.parallel.num_distributed_optimizer_instances = 2;
  plan = MakePlan(job.spec, job.resolved);
  EXPECT_EQ(plan->stages[0].optimizer_bytes, 12 * n / 4);
}

TEST(PlanTest, Pipeline) {
  Job job = Gpt2();
  job.spec.resources.world_size = 4;
  job.spec.parallel.pipeline_model_parallel_size = 4;
  job.resolved.global_batch_size = 32;
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->stages.size(), 4u);
  EXPECT_EQ(plan->num_microbatches, 8);
  EXPECT_EQ(plan->bubble_fraction, 0.375);
  const int64_t layers = 3 * 7087872LL;
  EXPECT_EQ(plan->stages[1].parameters, layers);
  EXPECT_EQ(plan->stages[0].parameters, layers + (50304 + 1024) * 768LL);
  EXPECT_EQ(plan->stages[3].parameters, layers + 50304 * 768LL + 1536);
  // Four, three, two microbatches in flight.
  auto layers_of = AssignLayers({.num_layers = 12, .pp = 4});
  ASSERT_TRUE(layers_of.ok());
  const int64_t kept = ChunkActivations(job.spec, job.resolved, (*layers_of)[1][0]).kept;
  EXPECT_EQ(plan->stages[1].activation_bytes, plan->stages[2].activation_bytes + kept);
  EXPECT_GT(plan->stages[0].activation_bytes, plan->stages[1].activation_bytes + kept);
}

TEST(PlanTest, VirtualStagesShrinkTheBubble) {
  Job job = Gpt2();
  job.spec.resources.world_size = 2;
  job.spec.parallel.pipeline_model_parallel_size = 2;
  job.spec.parallel.num_layers_per_virtual_pipeline_stage = 2;
  job.resolved.global_batch_size = 32;
  auto plan = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->bubble_fraction, 1.0 / (3 * 8));
}

TEST(PlanTest, ManyMicrobatchesCostNoTime) {
  Job job = Gpt2();
  job.spec.parallel.pipeline_model_parallel_size = 4;
  job.spec.training.micro_batch_size = 1;
  job.resolved.global_batch_size = 2000000000000;
  auto many = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(many.ok()) << many.status();
  job.resolved.global_batch_size = 64;
  auto few = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(many->stages[0].activation_bytes, few->stages[0].activation_bytes);
  job.spec.parallel.virtual_pipeline_model_parallel_size = 3;
  few = MakePlan(job.spec, job.resolved);
  job.resolved.global_batch_size = 4 * 4096;
  many = MakePlan(job.spec, job.resolved);
  ASSERT_TRUE(few.ok() && many.ok());
  EXPECT_EQ(many->stages[0].activation_bytes, few->stages[0].activation_bytes);
}

// From every pass recomputed as a whole to none.
TEST(PlanTest, PartialCheckpointsLieBetweenTheirExtremes) {
  for (const int64_t v : {1, 3}) {
    Job job = Gpt2();
    job.spec.parallel.pipeline_model_parallel_size = 4;
    job.spec.parallel.virtual_pipeline_model_parallel_size = v;
    job.spec.training.micro_batch_size = 1;
    job.resolved.global_batch_size = 64;
    const auto bytes = [](const Job& j) {
      const auto plan = MakePlan(j.spec, j.resolved);
      EXPECT_TRUE(plan.ok()) << plan.status();
      return plan->stages[1].activation_bytes;
    };
    const int64_t none = bytes(job);
    Job block = job;
    block.spec.training.recompute_granularity = "full";
    block.spec.training.recompute_method = "block";
    block.spec.training.recompute_num_layers = 12;
    const int64_t all = bytes(block);
    std::optional<int64_t>& partial =
        job.spec.training.num_microbatches_with_partial_activation_checkpoints;
    partial = 0;
    int64_t before = bytes(job);
    EXPECT_EQ(before, all);
    const int64_t window = v == 1 ? 3 : 2 * 2 + 2 * 4 + 1;
    for (partial = 1; *partial < window; ++*partial) {
      const int64_t now = bytes(job);
      EXPECT_GE(now, before) << "v " << v << ", partial " << *partial;
      // Interleaved, the passes in flight are not a window: at times none of them is recomputed.
      if (v == 1) {
        EXPECT_GT(now, before) << "partial " << *partial;
        EXPECT_LT(now, none) << "partial " << *partial;
      }
      before = now;
    }
    partial = window;
    EXPECT_EQ(bytes(job), none);
    job.resolved.global_batch_size = 1 << 20;
    EXPECT_EQ(bytes(job), none);
  }
}

TEST(PlanTest, SaysWhatCannotRun) {
  Job job = Gpt2();
  job.spec.parallel.pipeline_model_parallel_size = 5;
  EXPECT_THAT(std::string(MakePlan(job.spec, job.resolved).status().message()),
              HasSubstr("num_layers=12 must be a multiple"));
  job = Gpt2();
  job.resolved.global_batch_size = 6;
  EXPECT_THAT(std::string(MakePlan(job.spec, job.resolved).status().message()),
              HasSubstr("global_batch_size=6"));
}

}  // namespace
}  // namespace muster
