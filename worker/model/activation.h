// The MLP's nonlinearities, with the bias of the product in front of them added in the same pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/parallel/parameter.h"

namespace muster {

// gelu(x + bias), exact (erf). x (N, F), bias (F) or null -> (N, F).
at::Tensor BiasGeluOp(const at::Tensor& x, const ParameterPtr& bias);

// silu(a) * b with [a, b] = x + bias, a the first half of the columns (Shazeer 2020). x (N, 2F),
// bias (2F) or null -> (N, F).
at::Tensor BiasSwigluOp(const at::Tensor& x, const ParameterPtr& bias);

// The same for operations that hold more than an activation: x with its bias in it, nothing
// recorded.
at::Tensor Activate(const at::Tensor& x, bool swiglu);
at::Tensor ActivateBackward(const at::Tensor& dy, const at::Tensor& x, bool swiglu);

}  // namespace muster
