// Floating point operations of one global batch (reference 12.8; Megatron's
// num_floating_point_operations). Counts the matrix products of the forward pass and both halves
// of the backward pass; causal attention counts half. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace muster {

// Multi-head latent attention.
struct MlaShape {
  std::optional<int64_t> q_lora_rank;
  int64_t kv_lora_rank = 0;
  int64_t qk_head_dim = 0, qk_pos_emb_head_dim = 0, v_head_dim = 0;
};

struct FlopsModel {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;
  int64_t kv_channels = 0;
  int64_t padded_vocab_size = 0;
  bool swiglu = false;
  bool attention_output_gate = false;
  int64_t mtp_num_layers = 0;
  // Mixture of experts: a flag a layer; empty: all dense.
  std::vector<bool> moe_layers;
  int64_t moe_router_topk = 0;
  int64_t moe_ffn_hidden_size = 0;
  int64_t moe_shared_expert_intermediate_size = 0;
  std::optional<MlaShape> mla;
};

// Lengths of the batch's sequences: `num_tokens` = their sum, `sum_squared_lengths` in tokens^2.
double FlopsOfTokens(const FlopsModel& model, double num_tokens, double sum_squared_lengths);

// A batch of `batch_size` sequences of `seq_length` tokens.
double FlopsOfBatch(const FlopsModel& model, int64_t batch_size, int64_t seq_length);

}  // namespace muster
