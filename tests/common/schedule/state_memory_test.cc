#include "common/schedule/state_memory.h"

#include "gtest/gtest.h"
#include "plan_fixture.h"

namespace muster {
namespace {

constexpr int64_t kAll = 1235814400;  // Llama 1B
constexpr int64_t kLayer = 60821504, kTable = 128256 * 2048;

Job Ranks(int64_t dp) {
  Job job = Llama1B();
  job.spec.resources.world_size = job.resolved.data_parallel_size = dp;
  return job;
}

ChunkLayers WholeModel(const Job& job) {
  ChunkLayers chunk{.embedding = true, .loss = true};
  for (int64_t i = 0; i < job.spec.model.num_layers; ++i) chunk.layers.push_back(i);
  return chunk;
}

StateMemory StateOf(const Job& job) {
  return StageState(job.spec, job.resolved, {WholeModel(job)});
}

Job Fsdp(int64_t dp, const char* strategy) {
  Job job = Ranks(dp);
  job.spec.parallel.use_megatron_fsdp = true;
  job.spec.parallel.data_parallel_sharding_strategy = strategy;
  return job;
}

TEST(StateMemoryTest, EachStrategyOfMegatronFsdp) {
  StateMemory state = StateOf(Fsdp(8, "no_shard"));
  EXPECT_EQ(state.parameter_bytes, 2 * kAll);
  EXPECT_EQ(state.gradient_bytes, 4 * kAll);
  EXPECT_EQ(state.optimizer_bytes, 12 * kAll);
  EXPECT_EQ(state.gathered_bytes, 0);
  state = StateOf(Fsdp(8, "optim"));
  EXPECT_EQ(state.parameter_bytes, 2 * kAll);
  EXPECT_EQ(state.gradient_bytes, 4 * kAll);
  EXPECT_EQ(state.optimizer_bytes, 12 * kAll / 8);
  EXPECT_EQ(state.gathered_bytes, 0);
  state = StateOf(Fsdp(8, "optim_grads"));
  EXPECT_EQ(state.parameter_bytes, 2 * kAll);
  EXPECT_EQ(state.gradient_bytes, 4 * kAll / 8);
  EXPECT_EQ(state.optimizer_bytes, 12 * kAll / 8);
  // Local gradients of two layers, of the embedding and the final norm.
  EXPECT_EQ(state.gathered_bytes, 4 * (2 * kLayer + kTable + 2048));
  state = StateOf(Fsdp(8, "optim_grads_params"));
  EXPECT_EQ(state.parameters, kAll / 8);
  EXPECT_EQ(state.parameter_bytes, 2 * kAll / 8);
  EXPECT_EQ(state.gradient_bytes, 4 * kAll / 8);
  EXPECT_EQ(state.gathered_bytes, 6 * (2 * kLayer + kTable + 2048));  // and their values
}

TEST(StateMemoryTest, AloneNothingIsGathered) {
  EXPECT_EQ(StateOf(Fsdp(1, "optim_grads_params")).gathered_bytes, 0);
}

TEST(StateMemoryTest, InstancesShareThePartsOfOne) {
  Job job = Fsdp(8, "optim_grads_params");
  job.spec.parallel.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(StateOf(job).parameter_bytes, 2 * kAll / 4);
  EXPECT_EQ(StateOf(job).gradient_bytes, 4 * kAll / 4);
  EXPECT_EQ(StateOf(job).optimizer_bytes, 12 * kAll / 4);
  job.spec.parallel.outer_dp_sharding_strategy = "optim";
  EXPECT_EQ(StateOf(job).gradient_bytes, 4 * kAll / 4);
  EXPECT_EQ(StateOf(job).optimizer_bytes, 12 * kAll / 8);
}

TEST(StateMemoryTest, TorchFsdp2KeepsUnitsWhereItDoesNotReshard) {
  Job job = Ranks(8);
  job.spec.parallel.use_torch_fsdp2 = true;
  job.spec.model.untie_embeddings_and_output_weights = true;
  const int64_t root = 2 * kTable + 2048;
  EXPECT_EQ(StateOf(job).parameter_bytes, 2 * (kAll + kTable) / 8);
  EXPECT_EQ(StateOf(job).optimizer_bytes, 12 * (kAll + kTable) / 8);
  EXPECT_EQ(StateOf(job).gathered_bytes, 6 * (2 * kLayer + root));
  job.spec.parallel.torch_fsdp2_reshard_after_forward = false;
  EXPECT_EQ(StateOf(job).gathered_bytes, 2 * 16 * kLayer + 4 * 2 * kLayer + 6 * root);
}

// fp32: a block serves values and gradients.
TEST(StateMemoryTest, BlocksOfOneSizeServeBoth) {
  Job job = Fsdp(8, "optim_grads_params");
  job.spec.training.bf16 = false;
  EXPECT_EQ(StateOf(job).gathered_bytes, 4 * 4 * kLayer + 8 * (kTable + 2048));
}

// Dense parameters are cut over dp x cp, those of experts over expert dp.
TEST(StateMemoryTest, ExpertsHaveRanksOfTheirOwn) {
  Job job = Fsdp(8, "optim_grads_params");
  job.spec.model.num_experts = 8;
  job.spec.parallel.expert_model_parallel_size = 4;
  // A layer's dense part: attention, norms, router; two experts of 3 x 8192 x 2048.
  const int64_t dense = 16 * (kLayer - 3 * 8192 * 2048 + 8 * 2048) + kTable + 2048;
  const int64_t experts = 16 * 2 * 3 * 8192LL * 2048;
  EXPECT_EQ(StateOf(job).parameters, dense / 8 + experts / 2);
  EXPECT_EQ(StateOf(job).gradient_bytes, 4 * (dense / 8 + experts / 2));
  EXPECT_EQ(StateOf(job).optimizer_bytes, 12 * (dense / 8 + experts / 2));
  job.spec.parallel.context_parallel_size = 2;
  job.resolved.data_parallel_size = 4;
  EXPECT_EQ(StateOf(job).parameters, dense / 8 + experts / 2);
}

}  // namespace
}  // namespace muster
