// Reductions over tensors of this process, in rank order: the same bits whatever the timing.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"

namespace muster {

// target = op(target, other), element by element, in the tensors' own type. A sum of bools is "or",
// as on NCCL.
void Accumulate(at::Tensor& target, const at::Tensor& other, ReduceOp op);

// op over `parts` (equal sizes, at least one) in order, as a fresh tensor.
at::Tensor ReduceInOrder(const std::vector<at::Tensor>& parts, ReduceOp op);

}  // namespace muster
