#include "worker/parallel/expert_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/stack.h>

#include "common/base/status.h"

namespace muster {

absl::Status ExpertState::UpdateBiases(const ParallelContext& parallel, double rate) {
  if (biases_.empty()) return absl::OkStatus();
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> each;
  for (const ExpertBias& entry : biases_) each.push_back(entry.counts);
  const at::Tensor counts = at::stack(each);  // (layers, experts)
  RETURN_IF_ERROR(Annotate(parallel.Group("tp_dp_cp").AllReduce(counts, ReduceOp::kSum)->Wait(),
                           "expert bias"));
  const at::Tensor step = at::sign(counts.mean(1, /*keepdim=*/true).sub(counts)).mul_(rate);
  for (size_t i = 0; i < biases_.size(); ++i) {
    biases_[i].bias.add_(step[static_cast<int64_t>(i)]);
    biases_[i].counts.zero_();
  }
  return absl::OkStatus();
}

}  // namespace muster
