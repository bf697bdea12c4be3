// All experts of a rank in one recorded operation: both products and the activation between them,
// over rows that lie expert by expert (reference 14.5, moe_grouped_gemm). Of the inner width only
// the first product's result is kept for the backward pass; the gradients of the weights go
// straight into main_grad.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/experts.h"

namespace muster {

// Arguments and result as SequentialExperts has them.
at::Tensor GroupedExpertsOp(const at::Tensor& x, const at::Tensor& probs,
                            const std::vector<int64_t>& rows_per_expert,
                            const std::vector<ExpertWeights>& experts, bool swiglu);

}  // namespace muster
