// What the forms of context-parallel attention share (cp_attention.h). Heads are this rank's
// tokens: its two chunks of the sequence (worker/data/context_slices.h), S = seq / cp of them.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/attention_piece.h"

namespace muster {

struct ContextHeads {
  at::Tensor q;   // (B, S, heads, D)
  at::Tensor kv;  // (2, B, S, groups, D), dense: K and V in one flat buffer
};

struct ContextOptions {
  PieceOptions piece;
  at::Tensor hidden;  // (B, 1, S, seq) bool, true = masked: this rank's queries; undefined: causal
};

// What backward reads. Nothing in it grows with the whole sequence, but for the random masks of
// dropout.
struct ContextKept {
  at::Tensor q, kv;
  at::Tensor out, lse;            // (B, S, heads, D); (B, heads, S)
  std::vector<PieceKept> pieces;  // by step of the forward pass
};

struct ContextGrads {
  at::Tensor q, kv;  // like ContextHeads
};

}  // namespace muster
