// What a layer's forward pass keeps, its backward pass gives back, whatever the layer is made of;
// and how that depends on context and expert parallelism.
#include "common/schedule/activation_layers.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/schedule/expert_rows.h"
#include "gtest/gtest.h"
#include "plan_fixture.h"

namespace muster {
namespace {

Job Small() {
  Job job;
  ModelSpec& m = job.spec.model;
  m.num_layers = 2;
  m.hidden_size = 64;
  m.num_attention_heads = 4;
  m.seq_length = 64;
  m.add_bias_linear = false;
  m.attention_dropout = m.hidden_dropout = 0;
  job.spec.training.micro_batch_size = 2;
  ResolvedSpec& r = job.resolved;
  r.ffn_hidden_size = 256;
  r.kv_channels = 16;
  r.num_query_groups = 4;
  r.max_position_embeddings = 64;
  r.padded_vocab_size = 512;
  return job;
}

Job SmallMoe() {
  Job job = Small();
  job.spec.model.num_experts = 4;
  job.spec.model.moe_ffn_hidden_size = 128;
  return job;
}

struct LayerBytes {
  double kept = 0, peak = 0;
};
LayerBytes RunLayer(const Job& job) {
  LayerWalk walk(job.spec, job.resolved);
  Tape& tape = walk.tape();
  tape.Take(walk.Hidden());
  walk.LayerForward(0, /*open=*/false);
  const double kept = tape.held();
  tape.Take(walk.Hidden());
  EXPECT_EQ(walk.LayerBackward(0, /*open=*/false, walk.Hidden()), walk.Hidden());
  // The input and the branch, which the next layer would have given, and the input's gradient.
  EXPECT_DOUBLE_EQ(tape.held(), 3 * walk.Hidden());
  return {kept, tape.peak()};
}

TEST(ActivationLayersTest, WhatIsKeptIsGivenBack) {
  int tried = 0;
  for (const char* type : {"none", "p2p", "all_gather", "a2a", "a2a+p2p"}) {
    for (const int64_t cp : {2, 4}) {
      for (const bool bf16 : {false, true}) {
        for (const int options : {0, 1, 2, 3}) {
          SCOPED_TRACE(absl::StrCat(type, " ", cp, " ", bf16, " ", options));
          Job job = Small();
          if (std::string(type) != "none") {
            job.spec.parallel.context_parallel_size = cp;
            job.spec.parallel.cp_comm_type = {type};
          }
          job.spec.training.bf16 = bf16;
          if (options & 1) job.spec.model.attention_dropout = 0.1;
          if (options & 2) job.spec.model.qk_layernorm = true;
          const LayerBytes bytes = RunLayer(job);
          EXPECT_GT(bytes.peak, bytes.kept);
          ++tried;
        }
      }
    }
  }
  EXPECT_EQ(tried, 80);
}

TEST(ActivationLayersTest, WhatExpertsKeepIsGivenBack) {
  for (const char* dispatcher : {"allgather", "alltoall"}) {
    for (const auto& [tp, ep, etp] :
         {std::array{1, 1, 1}, std::array{1, 2, 1}, std::array{2, 2, 2}, std::array{2, 4, 1}}) {
      for (int options = 0; options < 64; ++options) {
        SCOPED_TRACE(absl::StrCat(dispatcher, " ep", ep, " etp", etp, " ", options));
        Job job = SmallMoe();
        ModelSpec& m = job.spec.model;
        job.spec.parallel.tensor_model_parallel_size = tp;
        job.spec.parallel.sequence_parallel = tp > 1;
        job.spec.parallel.expert_model_parallel_size = ep;
        job.spec.parallel.expert_tensor_parallel_size = etp;
        m.moe_token_dispatcher_type = dispatcher;
        if (options & 1) m.moe_grouped_gemm = true;
        if (options & 2) m.moe_shared_expert_intermediate_size = 64;
        if ((options & 6) == 6) m.moe_shared_expert_gate = true;
        if (options & 8) {
          job.spec.training.bf16 = true;
          m.moe_router_dtype = "fp32";
        }
        if (options & 16) {
          m.moe_router_topk = 1;
          m.moe_apply_probs_on_input = true;
        }
        if (options & 32) {
          m.moe_input_jitter_eps = 0.1;
          m.moe_aux_loss_coeff = {0.1};
        }
        const LayerBytes bytes = RunLayer(job);
        EXPECT_GT(bytes.peak, bytes.kept);
      }
    }
  }
}

TEST(ActivationLayersTest, ContextParallelRanksShareTheTokens) {
  Job job = Small();
  const double whole = RunLayer(job).kept;
  job.spec.parallel.context_parallel_size = 2;
  EXPECT_NEAR(RunLayer(job).kept, whole / 2, 0.01 * whole);
  job.spec.parallel.context_parallel_size = 4;
  EXPECT_NEAR(RunLayer(job).kept, whole / 4, 0.01 * whole);
}

TEST(ActivationLayersTest, GroupedExpertsKeepLess) {
  Job job = SmallMoe();
  const double sequential = RunLayer(job).kept;
  job.spec.model.moe_grouped_gemm = true;
  // Neither the activation nor its weighted copy: two tensors of 2 x 128 tokens x 128.
  EXPECT_EQ(sequential - RunLayer(job).kept, 2 * 2 * 128 * 128 * 4);
}

TEST(ExpertRowsTest, EvenRouting) {
  Job job = SmallMoe();  // 128 tokens, each to two of four experts
  ExpertRows rows = ExpertRowsOf(job.spec);
  EXPECT_EQ(rows.tokens, 128);
  EXPECT_EQ(rows.sent, 256);
  EXPECT_EQ(rows.received, 256);
  job.spec.parallel.expert_model_parallel_size = 2;
  rows = ExpertRowsOf(job.spec);
  EXPECT_EQ(rows.local_experts, 2);
  EXPECT_EQ(rows.sent, 256);
  EXPECT_EQ(rows.received, 256);
  job.spec.parallel.tensor_model_parallel_size = 2;  // and expert tensor parallel
  job.spec.parallel.sequence_parallel = true;
  rows = ExpertRowsOf(job.spec);
  EXPECT_EQ(rows.tokens, 64);
  EXPECT_EQ(rows.sent, 128);
  EXPECT_EQ(rows.received, 256);
  EXPECT_EQ(ExpertRowsOf(Small().spec).received, 0);
}

TEST(ExpertRowsTest, Capacity) {
  Job job = SmallMoe();
  ModelSpec& m = job.spec.model;
  m.moe_expert_capacity_factor = 0.5;  // 32 of 64 rows
  EXPECT_EQ(ExpertRowsOf(job.spec).received, 128);
  m.moe_expert_capacity_factor = 1.5;
  EXPECT_EQ(ExpertRowsOf(job.spec).received, 256);
  m.moe_pad_expert_input_to_capacity = true;
  EXPECT_EQ(ExpertRowsOf(job.spec).received, 4 * 96);
  m.moe_expert_capacity_factor = 100;  // beyond the tokens that there are
  EXPECT_EQ(ExpertRowsOf(job.spec).received, 4 * 128);
}

}  // namespace
}  // namespace muster
