// Attention over a sequence that is spread over the context-parallel ranks (reference 14.3), each
// with two chunks of it (worker/data/context_slices.h). How the ranks see each other's keys:
//   p2p         cp_ring.h
//   all_gather  cp_gather.h
//   a2a         cp_heads.h: the whole sequence of 1 / cp of the heads, then attention as on one
//   rank a2a+p2p     a2a inside the lower level of the cp group, the ring over the upper one; a
//   level of
//               one rank leaves the other
// All are one differentiable operation; its forward and its backward communicate, in the same order
// on every rank. Throws CollectiveError.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/core_attention.h"
#include "worker/model/cp_types.h"
#include "worker/ops/parallel_groups.h"

namespace muster {

struct ContextPlan {
  CpCommType comm_type = CpCommType::kP2p;
  ContextParallel cp;
  ContextOptions options;
};

// As FlashCausalAttentionOp of this rank's rows: split, rotate (rotary, of this rank's positions,
// may be null), attend. qkv (N, groups * (r + 2) * D) -> (N, heads * D).
at::Tensor ContextAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                              const TokenLayout& layout, const RotaryTable* rotary,
                              const ContextPlan& plan);
// Of heads that are split and rotated already.
at::Tensor ContextAttentionOp(const QkvHeads& heads, const TokenLayout& layout,
                              const ContextPlan& plan);

}  // namespace muster
