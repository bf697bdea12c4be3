// Reductions over tensors of this process, in rank order: the same bits whatever the timing.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"

namespace muster {

// result = op(a, b), element by element, in the tensors' own type; result may be a or b. A sum of
// bools is "or", as on NCCL. All have the same shape.
void Combine(at::Tensor& result, const at::Tensor& a, const at::Tensor& b, ReduceOp op);

// op over `parts` (equal sizes, at least one) in order, as a fresh tensor.
at::Tensor ReduceInOrder(const std::vector<at::Tensor>& parts, ReduceOp op);

}  // namespace muster
