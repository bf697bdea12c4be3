#include "common/schedule/model_size.h"

#include <functional>

#include "gtest/gtest.h"
#include "plan_fixture.h"

namespace muster {
namespace {

int64_t Count(const Job& job) { return CountParameters(job.spec, job.resolved).total(); }

TEST(ModelSizeTest, Gpt2Of124M) {
  // Embeddings 50304 x 768 + 1024 x 768; a layer 7,087,872; final norm 1,536.
  EXPECT_EQ(Count(Gpt2()), 124475904);
}

TEST(ModelSizeTest, Llama1B) {
  // Published: 1,235,814,400.
  Job job = Llama1B();
  EXPECT_EQ(Count(job), 1235814400);
  job.spec.model.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(Count(job), 1235814400 + 128256LL * 2048);
}

TEST(ModelSizeTest, Mixtral8x7B) {
  // Published: 46,702,792,704 (32 layers, 4096, 32 heads in 8 groups, 8 experts of 14336, 32000).
  Job job = Llama1B();
  job.spec.model.num_layers = 32;
  job.spec.model.hidden_size = 4096;
  job.spec.model.num_experts = 8;
  job.spec.model.untie_embeddings_and_output_weights = true;
  job.resolved.ffn_hidden_size = 14336;
  job.resolved.kv_channels = 128;
  job.resolved.vocab_size = job.resolved.padded_vocab_size = 32000;
  EXPECT_EQ(Count(job), 46702792704);
}

TEST(ModelSizeTest, OptionsChangeWhatTheySay) {
  const int64_t base = Count(Gpt2());
  auto delta = [&](const std::function<void(Job&)>& change) {
    Job job = Gpt2();
    change(job);
    return Count(job) - base;
  };
  EXPECT_EQ(delta([](Job& j) { j.spec.model.normalization = "RMSNorm"; }), -25 * 768);
  EXPECT_EQ(delta([](Job& j) { j.spec.model.position_embedding_type = "none"; }), -1024 * 768);
  // qkv 2304, projection 768, fc1 3072, fc2 768 a layer.
  EXPECT_EQ(delta([](Job& j) { j.spec.model.add_bias_linear = false; }), -12 * 6912);
  EXPECT_EQ(delta([](Job& j) {
              j.spec.model.add_bias_linear = false;
              j.spec.model.add_qkv_bias = true;
            }),
            -12 * (6912 - 2304));
  EXPECT_EQ(delta([](Job& j) { j.spec.model.qk_layernorm = true; }), 12 * 2 * 2 * 64);
  EXPECT_EQ(delta([](Job& j) { j.spec.model.swiglu = true; }), 12 * (3072 * 768 + 3072));
  EXPECT_EQ(delta([](Job& j) { j.resolved.num_query_groups = 4; }), -12 * 2 * 8 * 64 * (768 + 1));
  EXPECT_EQ(delta([](Job& j) {
              j.spec.model.num_experts = 4;
              j.spec.model.moe_shared_expert_intermediate_size = 100;
            }),
            // Three more MLPs, a router with a bias, a shared expert.
            12LL * (3 * (2 * 3072 * 768 + 3072 + 768) + 4 * 769 + 2 * 100 * 768 + 100 + 768));
}

TEST(ModelSizeTest, RanksTogetherHoldTheModel) {
  Job job = Llama1B();
  job.spec.model.untie_embeddings_and_output_weights = true;
  job.spec.parallel.tensor_model_parallel_size = 4;
  job.spec.parallel.pipeline_model_parallel_size = 2;
  auto layers = AssignLayers({.num_layers = 16, .pp = 2});
  ASSERT_TRUE(layers.ok());
  int64_t sum = 0;
  for (const auto& chunks : *layers) {
    sum += 4 * CountRankParameters(job.spec, job.resolved, chunks).total();
  }
  // Norms are whole on each of the four ranks.
  EXPECT_EQ(sum, Count(job) + 3 * 33 * 2048);
}

// Four layers of which the second and the fourth have four experts of 10 and a shared one of 6.
Job SmallMoe() {
  Job job;
  ModelSpec& m = job.spec.model;
  m.num_layers = 4;
  m.hidden_size = 8;
  m.num_attention_heads = 2;
  m.num_experts = 4;
  m.moe_layer_freq = {0, 1, 0, 1};
  m.moe_ffn_hidden_size = 10;
  m.moe_shared_expert_intermediate_size = 6;
  m.moe_shared_expert_gate = true;
  m.add_bias_linear = false;
  ResolvedSpec& r = job.resolved;
  r.ffn_hidden_size = 32;
  r.kv_channels = 4;
  r.num_query_groups = 2;
  r.max_position_embeddings = 16;
  r.padded_vocab_size = 64;
  return job;
}

TEST(ModelSizeTest, LayersWithAndWithoutExperts) {
  const Job job = SmallMoe();
  const int64_t norms = 2 * 2 * 8, attention = 4 * 8 * 8;
  const int64_t dense = norms + attention + 2 * 32 * 8;
  // Router, four experts, shared expert and its gate.
  const int64_t moe = norms + attention + 4 * 8 + 4 * 2 * 10 * 8 + 2 * 6 * 8 + 8;
  EXPECT_EQ(Count(job), 2 * (dense + moe) + (64 + 16) * 8 + 2 * 8);
}

TEST(ModelSizeTest, RanksOfExperts) {
  Job job = SmallMoe();
  job.spec.parallel.tensor_model_parallel_size = 2;
  job.spec.parallel.expert_model_parallel_size = 4;
  job.spec.parallel.expert_tensor_parallel_size = 1;
  const ChunkLayers chunk{.embedding = true, .loss = true, .layers = {0, 1, 2, 3}};
  const ChunkParameters parts = CountChunkParameters(job.spec, job.resolved, chunk);
  ASSERT_EQ(parts.layers.size(), 4u);
  EXPECT_EQ(parts.layers[0].expert_matrices, 0);
  EXPECT_EQ(parts.layers[1].expert_matrices, 2 * 10 * 8);  // one whole expert
  // Attention and the shared expert are halved, router and gate whole.
  EXPECT_EQ(parts.layers[1].dense_matrices, 4 * 8 * 8 / 2 + 2 * 6 * 8 / 2 + 4 * 8 + 8);
  EXPECT_EQ(parts.embedding.total(), (32 + 16) * 8);
  EXPECT_EQ(parts.final_norm.total(), 2 * 8);
  EXPECT_EQ(parts.output.total(), 0);  // tied
  job.spec.parallel.expert_model_parallel_size = 2;
  job.spec.parallel.expert_tensor_parallel_size = 2;
  EXPECT_EQ(CountChunkParameters(job.spec, job.resolved, chunk).layers[3].expert_matrices,
            2 * 2 * 5 * 8);  // two halves
}

}  // namespace
}  // namespace muster
