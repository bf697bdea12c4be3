// Records one differentiable operation of our own in autograd's graph: the forward result, the
// tensors it depends on, and the backward as a closure. Coarse operations with hand-written
// backwards save copies and let weight gradients go straight into main_grad.
//
//   at::Tensor y;
//   {
//     OpForward forward;                       // nothing inside is recorded
//     y = ...;
//   }
//   return RecordOp(y, {x, w}, [x, w](const TensorList& grads, const NeedsGrad& needs) {
//     return TensorList{dx, dw};               // one a recorded input; undefined: none
//   });
//
// The closure keeps what backward reads. It is dropped as soon as it has run, so activations are
// freed while the backward pass goes on. It must capture outputs only through Detached(), otherwise
// graph and tensor keep each other alive. A backward runs with recording off (no second
// derivatives). Thread-safety: a graph belongs to one rank's thread.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

namespace muster {

using TensorList = std::vector<at::Tensor>;
using NeedsGrad = std::vector<bool>;  // a recorded input each: does the caller want its gradient?
using BackwardFunction =
    std::function<TensorList(const TensorList& output_grads, const NeedsGrad& needs)>;

// Scope of a forward computation that autograd must not see.
using OpForward = at::AutoDispatchBelowADInplaceOrView;

// `output`: a fresh tensor. Returned as it is when no input needs a gradient or recording is off.
at::Tensor RecordOp(at::Tensor output, const TensorList& inputs, BackwardFunction backward);
// Several outputs; a gradient that nobody sent arrives undefined.
TensorList RecordOp(TensorList outputs, const TensorList& inputs, BackwardFunction backward);

// The same data without history.
at::Tensor Detached(const at::Tensor& tensor);

}  // namespace muster
