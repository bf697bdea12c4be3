// Makes the gradients of a step final, in Megatron's order (reference 5.2).
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/expert_state.h"
#include "worker/parallel/parallel_context.h"

namespace muster {

// 1 waits for the data-parallel reductions of every chunk;
// 3 over tp: sums the gradients of replicated parameters that each rank saw a part of (flagged
//   sequence_parallel, and the q/k layernorms, which see a rank's own heads), then averages those
//   flagged average_gradients_across_tp_domain; each set in one reduction;
// 4 over the embedding group: sums the gradients of the tied word embedding and its copy (the
//   position embedding lives on the first stage alone: its group has one member);
// 5 sums the expert counts that move the routers' biases, where there are any (`experts`; they move
//   when the step is committed: ExpertState::CommitBiases);
// 7 in per-token mode (num_tokens is set): the last stage's token count goes to the other stages,
//   is summed over dp_cp, and every gradient is divided by max(total, 1).
// Step 2 is of models that are not here (conditional embedders); step 6, the reset of what a step
// gathers, is ExpertState::BeginStep.
//
// Where gradients were reduce-scattered, 3 and 4 reduce the shards that this rank owns: its peers
// there own the same ones, since they lay out their buffers alike and a shared embedding has a
// bucket to itself.
//
// `num_tokens`: scalar int64, this rank's tokens of all microbatches (of any value where no loss is
// computed); it becomes the total. Errors: those of the collectives, and of
// the wrapper. Looks at the device once, in per-token mode only.
absl::Status FinalizeModelGrads(DataParallel& ddp, const ParallelContext& parallel,
                                std::optional<at::Tensor> num_tokens,
                                ExpertState* experts = nullptr);

}  // namespace muster
