// Output projection and token cross entropy as one operation: the logits are kept once, in the
// parameters' dtype, and the backward turns them into their own gradient in place. Over tp each
// rank has the logits of its part of the vocabulary; nobody ever has all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/ops/mappings.h"
#include "worker/parallel/parameter.h"

namespace muster {

// hidden (N, H), or this rank's rows of it with sequence parallelism; weight (V / tp, H), labels
// (N) int64 in [0, V) -> token losses (N) on every rank, fp32 (fp64 for fp64 hidden): log-sum-exp
// of the logits minus the label's logit. The softmax runs over all V columns, padding included, as
// Megatron's does. Internals in fp32 (fp64).
at::Tensor LmHeadLossOp(const at::Tensor& hidden, const ParameterPtr& weight,
                        const at::Tensor& labels, const TensorParallel& tp = {});

}  // namespace muster
