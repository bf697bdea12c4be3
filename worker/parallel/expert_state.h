// What the MoE layers of a rank share with its training step (reference 5.1, 5.2 steps 5 and 6,
// 14.4): the scale of the side losses, the expert biases with the counts that move them, and the
// side losses to be logged. One a rank; layers hold a pointer. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/parallel_context.h"

namespace muster {

// A router's bias on the choice of experts: not a parameter, has no gradient; kept in checkpoints.
struct ExpertBias {
  std::string name;   // "decoder.layers.N.mlp.router.expert_bias"
  at::Tensor bias;    // (num_experts) fp32
  at::Tensor counts;  // (num_experts) fp32: tokens routed to each since the last update
};

class ExpertState {
 public:
  // Factor on the gradient of every side loss of the passes that follow: loss_scale in per-token
  // mode, else loss_scale * cp / num_microbatches.
  void SetSideLossScale(double scale) { side_loss_scale_ = scale; }
  double side_loss_scale() const { return side_loss_scale_; }

  // Routers register theirs once, in layer order. The tensors are shared.
  void AddBias(ExpertBias bias) { biases_.push_back(std::move(bias)); }
  const std::vector<ExpertBias>& biases() const { return biases_; }
  // bias += rate * sign(mean(count) - count), counts summed over tp_dp_cp; counts <- 0. Collective
  // over tp_dp_cp where there are biases.
  absl::Status UpdateBiases(const ParallelContext& parallel, double rate);

 private:
  double side_loss_scale_ = 1;
  std::vector<ExpertBias> biases_;
};

}  // namespace muster
