#include "worker/train/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "worker/train/forward_backward.h"

namespace muster {

absl::StatusOr<std::map<std::string, double>> Evaluate(JobState& state, DataIterator& data,
                                                       int64_t eval_iters,
                                                       int64_t num_microbatches) {
  ASSIGN_OR_RETURN(
      const RankSchedule schedule,
      MakeRankSchedule(
          {.num_microbatches = static_cast<int>(num_microbatches), .forward_only = true}, 0));
  for (const auto& chunk : state.chunks) chunk->SetTraining(false);
  std::map<std::string, at::Tensor> total;
  absl::Status status;
  int64_t iterations = 0;
  for (int64_t i = 0; i < eval_iters && status.ok(); ++i) {
    absl::StatusOr<ForwardBackwardResult> passes =
        RunForwardBackward({.schedule = schedule,
                            .num_microbatches = num_microbatches,
                            .forward_step = *state.forward_step,
                            .chunks = {state.chunks[0].get()},
                            .data = {&data}});
    status = passes.status();
    if (absl::IsOutOfRange(status) && i > 0) {
      status = absl::OkStatus();
      break;
    }
    if (!status.ok()) break;
    ++iterations;
    for (auto& [key, tensor] : passes->reported) {
      // A one-element report is averaged over the iterations, as [sum, count] of this rank.
      at::Tensor& sum = total[key];
      sum = sum.defined() ? sum.add_(tensor) : tensor;
    }
  }
  for (const auto& chunk : state.chunks) chunk->SetTraining(true);
  RETURN_IF_ERROR(status);
  for (auto& [key, tensor] : total) {
    if (tensor.numel() == 1) tensor.div_(static_cast<double>(iterations));
  }
  return ReduceReported(total, state.parallel.Group("dp_cp"));
}

double Perplexity(double loss) { return std::exp(std::min(20.0, loss)); }

}  // namespace muster
