// Makes the gradients of a step final, in Megatron's order (reference 5.2).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/parallel_context.h"

namespace muster {

// 1 waits for the reductions of every chunk; 7 in per-token mode (num_tokens is set): sums the
// token counts over dp_cp and divides every gradient by max(total, 1).
// `num_tokens`: scalar int64, this rank's tokens of all microbatches; it becomes the total.
// Steps 2 to 6 are of tensor and pipeline parallelism and of experts: UNIMPLEMENTED where tp or pp
// is above 1. Other errors: those of the collectives, and of DistributedDataParallel.
absl::Status FinalizeModelGrads(DistributedDataParallel& ddp, const ParallelContext& parallel,
                                std::optional<at::Tensor> num_tokens);

}  // namespace muster
