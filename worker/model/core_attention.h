// Attention itself, between the qkv projection and the output projection. The fused qkv rows hold,
// for every query group, its r = heads/groups queries, then its key, then its value, D channels
// each (Megatron's layout).
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/attention_layout.h"
#include "worker/model/rotary.h"
#include "worker/model/transformer_config.h"

namespace muster {

struct QkvHeads {
  at::Tensor q;     // (B, S, heads, D)
  at::Tensor k, v;  // (B, S, groups, D)
};
// Views into qkv (N, groups * (r + 2) * D) where strides allow; differentiable.
QkvHeads SplitQkv(const at::Tensor& qkv, const AttentionShape& shape, const TokenLayout& layout);

// On a CPU always, on a GPU by type and width (DeviceAttentionTakes).
bool FlashAttentionTakes(const at::Tensor& qkv, const AttentionShape& shape);

// One fused operation: split, rotate (rotary may be null), causal attention in blocks that never
// builds the (S, S) matrix, and a backward that writes one gradient of qkv. No dropout, no mask.
// (N, groups*(r+2)*D) -> (N, heads*D).
at::Tensor FlashCausalAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                                  const TokenLayout& layout, const RotaryTable* rotary);

struct ExactAttentionOptions {
  at::Tensor mask;          // (B, 1, S, S) bool, true = masked; undefined: causal
  double dropout = 0;       // on the probabilities
  at::Generator generator;  // of the dropout
};
// Scores, softmax in fp32 (fp64 for fp64), dropout, weighted sum: as Megatron's unfused path, with
// masked scores set to -10000. -> (N, heads*D).
at::Tensor ExactAttention(const QkvHeads& heads, const AttentionShape& shape,
                          const TokenLayout& layout, const ExactAttentionOptions& options);

}  // namespace muster
