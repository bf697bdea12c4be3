// The all-to-all of context parallelism (reference 14.3, "a2a"; Jacobs et al. 2023, DeepSpeed
// Ulysses): every rank's tokens of all heads <-> all ranks' tokens of this rank's heads. One
// message a pair of ranks holds all tensors of a call. Nothing is recorded in autograd's graph.
// Throws CollectiveError.
#pragma once

#include "worker/comm/communicator.h"
#include "worker/ops/autograd_op.h"

namespace muster {

// local: (B, S, heads, D) each, heads a multiple of the group's size n. whole: (B, n S, heads / n,
// D) each, written: the tokens in the order of the sequence (of the group's part of it).
void HeadsToSequence(Communicator& a2a, const TensorList& local, const TensorList& whole);
// Its transpose, which is its inverse: writes local.
void SequenceToHeads(Communicator& a2a, const TensorList& whole, const TensorList& local);

// This rank's rows of a mask, (B, 1, S, seq) -> those of the group, (B, 1, n S, seq).
at::Tensor GatherMaskRows(Communicator& a2a, const at::Tensor& hidden);

}  // namespace muster
