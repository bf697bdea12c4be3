// How attention's tensors lie in memory: rows of an activation (N, C), and heads (B, S, heads, D)
// or by head (B, heads, S, D).
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/blocked_attention.h"
#include "worker/model/device_attention.h"
#include "worker/model/transformer_config.h"

namespace muster {

struct AttentionShape {
  int64_t heads = 0, groups = 0, channels = 0;  // of this rank
  int64_t heads_a_group() const { return heads / groups; }
};

// (N, C) rows -> (B, S, C), a view.
at::Tensor ToBatchSeq(const at::Tensor& rows, const TokenLayout& layout);
// (N, heads * D) rows -> (B, S, heads, D), a view.
at::Tensor ToHeads(const at::Tensor& rows, int64_t heads, const TokenLayout& layout);
// (B, S, heads, D) -> rows (N, heads * D); a copy only when memory order differs.
at::Tensor ToRows(const at::Tensor& x, const TokenLayout& layout);

// (B, S, groups, D) -> (B, heads, S, D): each key serves the r queries of its group.
at::Tensor SpreadOverHeads(const at::Tensor& x, int64_t r);
// The transpose of it, summed over r.
at::Tensor SumOverHeads(const at::Tensor& x, int64_t r);

// CPUs multiply fp16 element by element: attention on them is computed in fp32 and rounded once.
at::Tensor Widened(const at::Tensor& x);

// Views of a gradient of qkv (N, groups * (r + 2) * D), Megatron's layout: for every query group
// its r queries, its key, its value.
struct QkvSlots {
  at::Tensor q;     // (B, S, groups, r, D)
  at::Tensor k, v;  // (B, S, groups, D)
};
QkvSlots SlotsOf(const at::Tensor& qkv, const AttentionShape& shape, const TokenLayout& layout);
void CopyUnlessThere(const at::Tensor& from, const at::Tensor& to);

}  // namespace muster
