#include "common/schedule/flops.h"

#include <algorithm>

namespace muster {
namespace {

// 2 operations a multiply-add, and a forward pass, a data gradient and a weight gradient.
constexpr double kPerMultiplyAdd = 2.0 * 3.0;

struct AttentionFlops {
  double linear_per_token = 0;  // projections of one layer
  double core_per_token2 = 0;   // scores and weighted sum of one layer, causal
};

AttentionFlops Attention(const FlopsModel& m) {
  const double h = m.hidden_size, n = m.num_attention_heads;
  if (m.mla.has_value()) {
    const MlaShape& a = *m.mla;
    const double dqk = a.qk_head_dim, dr = a.qk_pos_emb_head_dim, dv = a.v_head_dim;
    const double query = a.q_lora_rank.has_value()
                             ? static_cast<double>(*a.q_lora_rank) * (h + n * (dqk + dr) + 1)
                             : h * n * (dqk + dr);
    const double key_value = static_cast<double>(a.kv_lora_rank) * (h + n * (dqk + dv) + 1);
    return {kPerMultiplyAdd * (query + key_value + h * dr + n * dv * h),
            kPerMultiplyAdd * (n * (dqk + dr) / 2 + n * dv / 2)};
  }
  const double q = static_cast<double>(m.kv_channels) * n;
  const double kv = static_cast<double>(m.kv_channels) * static_cast<double>(m.num_query_groups);
  const double gate = m.attention_output_gate ? q : 0;
  return {kPerMultiplyAdd * (h * (q + 2 * kv + gate) + q * h), kPerMultiplyAdd * q};
}

}  // namespace

double FlopsOfTokens(const FlopsModel& m, double num_tokens, double sum_squared_lengths) {
  const double h = m.hidden_size;
  const double mtp = m.mtp_num_layers;
  double num_moe = std::count(m.moe_layers.begin(), m.moe_layers.end(), true);
  double num_dense = m.num_layers - num_moe;
  // A prediction layer is of the kind of the model's last layer.
  const bool last_is_moe = !m.moe_layers.empty() && m.moe_layers.back();
  (last_is_moe ? num_moe : num_dense) += mtp;

  const double gated = m.swiglu ? 3 : 2;  // matrices of an MLP
  const double mlp =
      kPerMultiplyAdd * h *
      (gated * m.ffn_hidden_size * num_dense + (gated * m.moe_router_topk * m.moe_ffn_hidden_size +
                                                gated * m.moe_shared_expert_intermediate_size) *
                                                   num_moe);
  const AttentionFlops attention = Attention(m);
  const double num_attention = m.num_layers + mtp;
  const double mtp_own = kPerMultiplyAdd * mtp * (3 * h + 2 * h * h);
  const double logits = kPerMultiplyAdd * h * m.padded_vocab_size * (mtp + 1);
  return num_tokens * (mlp + attention.linear_per_token * num_attention + mtp_own + logits) +
         sum_squared_lengths * attention.core_per_token2 * num_attention;
}

double FlopsOfBatch(const FlopsModel& model, int64_t batch_size, int64_t seq_length) {
  const double b = batch_size, s = seq_length;
  return FlopsOfTokens(model, b * s, b * s * s);
}

}  // namespace muster
