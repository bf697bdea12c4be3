// What the MoE layers of a rank share with its training step (reference 5.1, 5.2 steps 5 and 6,
// 14.4): the scale of the side losses, the expert biases with the counts that move them, the counts
// of the global balancing loss, and the side losses to be logged. One a rank; layers hold a
// pointer. One thread.
//
// A step: BeginStep, passes (routers count and log), PrepareBiases while gradients are made final,
// CommitBiases once the step is committed. A step that is dropped before that changed nothing that
// BeginStep does not put back.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
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
  at::Tensor counts;  // (num_experts) fp32: tokens routed to each since the step began
};

// Of one router's global_aux_loss: this rank's tokens that chose each expert since the step began.
struct GlobalExpertCounts {
  at::Tensor sum;  // (num_experts); undefined: none yet
  int64_t microbatches = 0;
};

// The side losses under Megatron's names, in the order of kSideLossNames.
enum class SideLossKind { kLoadBalancing, kSeqLoadBalancing, kGlobalLoadBalancing, kZ };
inline constexpr std::array<const char*, 4> kSideLossNames = {
    "load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss"};

class ExpertState {
 public:
  // Factor on the gradient of every side loss of the passes that follow: loss_scale in per-token
  // mode, else loss_scale * cp / num_microbatches.
  void SetSideLossScale(double scale) { side_loss_scale_ = scale; }
  double side_loss_scale() const { return side_loss_scale_; }

  // Routers register theirs once, in layer order. The tensors are shared.
  void AddBias(ExpertBias bias) { biases_.push_back(std::move(bias)); }
  const std::vector<ExpertBias>& biases() const { return biases_; }
  // A router's own, cleared by BeginStep.
  std::shared_ptr<GlobalExpertCounts> AddGlobalCounts();

  // One layer's loss of one microbatch, divided by its coefficient: a scalar, as this rank computed
  // it (its part of the sum over tp_cp or tp_dp_cp; its own value of a z-loss). Copied.
  void LogSideLoss(SideLossKind kind, const at::Tensor& loss_over_coeff);

  // Counts and logs of the step before are forgotten.
  void BeginStep();
  // Sums the counts over tp_dp_cp. Collective there where there are biases.
  absl::Status PrepareBiases(const ParallelContext& parallel);
  // bias += rate * sign(mean(count) - count), with PrepareBiases' counts; once.
  void CommitBiases(double rate);
  // Of the step, by name, those that were logged on any rank: each layer's loss over the step's
  // batch (summed over tp_cp and averaged over dp; global: summed over tp_dp_cp; z: averaged over
  // tp_dp_cp), averaged over microbatches and MoE layers. Collective over the world.
  absl::StatusOr<std::map<std::string, double>> ReduceSideLosses(const ParallelContext& parallel,
                                                                 c10::Device device,
                                                                 int64_t num_microbatches,
                                                                 int64_t num_moe_layers) const;

 private:
  double side_loss_scale_ = 1;
  std::vector<ExpertBias> biases_;
  at::Tensor prepared_counts_;  // (biases, experts), of the whole batch; undefined: none
  std::vector<std::shared_ptr<GlobalExpertCounts>> global_counts_;
  std::array<at::Tensor, kSideLossNames.size()> side_losses_;  // fp64 scalars, summed; or undefined
};

}  // namespace muster
