#include "worker/train/evaluate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "worker/train/run_passes.h"

namespace muster {

absl::StatusOr<std::map<std::string, double>> Evaluate(JobState& state,
                                                       const JobData::EvaluationPass& pass) {
  for (const auto& chunk : state.chunks) chunk->SetTraining(false);
  std::map<std::string, at::Tensor> total;
  absl::Status status;
  for (int64_t i = 0; i < pass.eval_iters && status.ok(); ++i) {
    absl::StatusOr<ForwardBackwardResult> passes =
        RunPasses(state, pass.data,
                  {.num_microbatches = pass.num_microbatches,
                   .micro_batch_size = pass.micro_batch_size,
                   .forward_only = true});
    status = passes.status();
    if (!status.ok()) break;
    for (auto& [key, tensor] : passes->reported) {
      // A one-element report is averaged over the iterations, as [sum, count] of this rank.
      at::Tensor& sum = total[key];
      sum = sum.defined() ? sum.add_(tensor) : tensor;
    }
  }
  for (const auto& chunk : state.chunks) chunk->SetTraining(true);
  RETURN_IF_ERROR(status);
  for (auto& [key, tensor] : total) {
    if (tensor.numel() == 1) tensor.div_(static_cast<double>(pass.eval_iters));
  }
  return ReduceReported(total, state.parallel.Group("dp_cp"));
}

double Perplexity(double loss) { return std::exp(std::min(20.0, loss)); }

}  // namespace muster
