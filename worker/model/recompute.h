// Activation recomputation (Chen et al. 2016): a segment of the model is run without keeping what
// its backward would read, and run once more when its gradient is due.
//
// The second run draws the same random numbers: every region's generator is put back to the state
// it had before the first run, and afterwards to the state it had before the second (reference 3).
// Collectives of the segment are issued again, in the same order on every rank that recomputes it.
// Its parameters get their gradients in the inner backward pass: once, as without recomputation.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/ops/autograd_op.h"

namespace muster {

// Reads from the outside world only its inputs, parameters and tensors without gradient; must give
// the same numbers for the same inputs and random states.
using Segment = std::function<TensorList(const TensorList& inputs)>;

// segment(inputs). Keeps the inputs and the regions' states (some kilobytes each) until backward.
// `regions`: all that the segment may draw from (RngTracker::Generators). Inputs may be undefined.
// With gradients off: the segment's plain result. Throws what the segment throws (CollectiveError).
TensorList Recompute(const std::vector<at::Generator>& regions, const TensorList& inputs,
                     Segment segment);

}  // namespace muster
