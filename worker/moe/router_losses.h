// The side losses of one router: what keeps its experts evenly loaded and its logits small
// (reference 14.4, 5.1).
//
//   s: scores over all experts (softmax; sigmoid: normalised), c: tokens that a plain top-k of them
//   gives each expert, P = sum of s over this rank's tokens
//   aux_loss         coeff E / (k T^2) sum_i P_i c_i    c summed over tp_cp, T tokens in there
//   seq_aux_loss     the same for each sequence, mean over the batch
//   global_aux_loss  c and T over tp_dp_cp; c the mean of the step's microbatches so far
//   z-loss           coeff / |tp_cp| mean(logsumexp(logits)^2)
//
// All of them are functions of the logits whose gradients have a closed form, so that one operation
// adds them to the gradient of the logits. Their values are needed by the log only. Hence the sums
// of counts over ranks run behind the layers that follow, and are waited for in the backward pass.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/moe/moe_config.h"
#include "worker/ops/parallel_groups.h"
#include "worker/parallel/expert_state.h"

namespace muster {

// How this rank's token rows lie: (S, B) with seq_major, else (B, S).
struct RoutedLayout {
  int64_t batch = 1, seq = 0;  // seq: this rank's tokens of one sequence
  bool seq_major = false;
  int64_t rows() const { return batch * seq; }
};

struct SideLossInput {
  const MoeConfig& config;
  const ExpertParallel& groups;
  ExpertState& experts;               // the scale, read in the backward pass, and the log
  GlobalExpertCounts* global_counts;  // of this router; null without global_aux_loss
  RoutedLayout tokens;
  at::Tensor choice;   // (T, k) int64: the plain top-k of the logits
  at::Tensor padding;  // (T) bool, or undefined
};

// logits (T, E) as they are; in the backward pass each side loss adds
//   scale * d loss / d logits,  scale = experts.side_loss_scale() of that moment, in per-token mode
//   times this rank's valid tokens times |tp_cp|.
// Collective over tp_cp and tp_dp_cp, where config's losses need them.
at::Tensor SideLossesOp(const at::Tensor& logits, const SideLossInput& input);

}  // namespace muster
