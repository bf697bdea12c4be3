#include "common/schedule/flops.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(FlopsTest, DenseG12_1) {
  const FlopsModel model{.num_layers = 24,
                         .hidden_size = 1024,
                         .ffn_hidden_size = 4096,
                         .num_attention_heads = 16,
                         .num_query_groups = 16,
                         .kv_channels = 64,
                         .padded_vocab_size = 50304};
  EXPECT_EQ(FlopsOfBatch(model, 8, 2048), 39698382716928.0);
}

FlopsModel Moe() {
  return {.num_layers = 4,
          .hidden_size = 512,
          .ffn_hidden_size = 2048,
          .num_attention_heads = 8,
          .num_query_groups = 4,
          .kv_channels = 64,
          .padded_vocab_size = 32000,
          .swiglu = true,
          .moe_layers = {false, true, true, true},
          .moe_router_topk = 2,
          .moe_ffn_hidden_size = 1024,
          .moe_shared_expert_intermediate_size = 512};
}

TEST(FlopsTest, MoeG12_1) { EXPECT_EQ(FlopsOfBatch(Moe(), 4, 1024), 898721906688.0); }

TEST(FlopsTest, MoeWithMtpG12_1) {
  FlopsModel model = Moe();
  model.mtp_num_layers = 1;
  EXPECT_EQ(FlopsOfBatch(model, 4, 1024), 1443146760192.0);
}

TEST(FlopsTest, TinyAndMlaG12_1) {
  FlopsModel model{.num_layers = 2,
                   .hidden_size = 4,
                   .ffn_hidden_size = 16,
                   .num_attention_heads = 2,
                   .num_query_groups = 2,
                   .kv_channels = 2,
                   .padded_vocab_size = 8};
  EXPECT_EQ(FlopsOfBatch(model, 1, 4), 10752.0);
  model.mla = MlaShape{.q_lora_rank = 3,
                       .kv_lora_rank = 2,
                       .qk_head_dim = 2,
                       .qk_pos_emb_head_dim = 1,
                       .v_head_dim = 2};
  EXPECT_EQ(FlopsOfBatch(model, 1, 4), 11664.0);
}

TEST(FlopsTest, PackedSequencesCountTheirOwnSquares) {
  FlopsModel model{.num_layers = 2,
                   .hidden_size = 4,
                   .ffn_hidden_size = 16,
                   .num_attention_heads = 2,
                   .num_query_groups = 2,
                   .kv_channels = 2,
                   .padded_vocab_size = 8};
  EXPECT_EQ(FlopsOfTokens(model, 8, 2 * 16), FlopsOfBatch(model, 2, 4));
  EXPECT_LT(FlopsOfTokens(model, 8, 2 * 16), FlopsOfBatch(model, 1, 8));
}

}  // namespace
}  // namespace muster
