#include "worker/parallel/expert_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "common/base/status.h"

namespace muster {
namespace {

// What makes a rank's value its part of a sum over the world: see ReduceSideLosses.
double ShareOf(SideLossKind kind, const ParallelContext& parallel) {
  switch (kind) {
    case SideLossKind::kLoadBalancing:
    case SideLossKind::kSeqLoadBalancing:
      return 1.0 / parallel.Group("dp").size();
    case SideLossKind::kGlobalLoadBalancing:
      return 1;
    case SideLossKind::kZ:
      return 1.0 / parallel.Group("tp_dp_cp").size();
  }
  return 0;
}

}  // namespace

std::shared_ptr<GlobalExpertCounts> ExpertState::AddGlobalCounts() {
  global_counts_.push_back(std::make_shared<GlobalExpertCounts>());
  return global_counts_.back();
}

void ExpertState::LogSideLoss(SideLossKind kind, const at::Tensor& loss_over_coeff) {
  at::NoGradGuard no_grad;
  const at::Tensor value = loss_over_coeff.detach().to(at::kDouble);
  at::Tensor& sum = side_losses_[static_cast<size_t>(kind)];
  sum = sum.defined() ? sum.add(value) : value.clone();
}

void ExpertState::BeginStep() {
  at::NoGradGuard no_grad;
  for (const ExpertBias& entry : biases_) entry.counts.zero_();
  prepared_counts_ = at::Tensor();
  for (const auto& counts : global_counts_) *counts = {};
  side_losses_ = {};
}

absl::Status ExpertState::PrepareBiases(const ParallelContext& parallel) {
  if (biases_.empty()) return absl::OkStatus();
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> each;
  for (const ExpertBias& entry : biases_) each.push_back(entry.counts);
  const at::Tensor counts = at::stack(each);  // (layers, experts)
  RETURN_IF_ERROR(Annotate(parallel.Group("tp_dp_cp").AllReduce(counts, ReduceOp::kSum)->Wait(),
                           "expert bias"));
  prepared_counts_ = counts;
  return absl::OkStatus();
}

void ExpertState::CommitBiases(double rate) {
  if (!prepared_counts_.defined()) return;
  at::NoGradGuard no_grad;
  const at::Tensor step =
      at::sign(prepared_counts_.mean(1, /*keepdim=*/true).sub(prepared_counts_)).mul_(rate);
  for (size_t i = 0; i < biases_.size(); ++i) biases_[i].bias.add_(step[static_cast<int64_t>(i)]);
  prepared_counts_ = at::Tensor();
}

absl::StatusOr<std::map<std::string, double>> ExpertState::ReduceSideLosses(
    const ParallelContext& parallel, c10::Device device, int64_t num_microbatches,
    int64_t num_moe_layers) const {
  at::NoGradGuard no_grad;
  constexpr auto kKinds = static_cast<int64_t>(kSideLossNames.size());
  // (kind, [sum, ranks that logged it])
  at::Tensor sums = at::zeros({kKinds, 2}, at::TensorOptions().dtype(at::kDouble).device(device));
  for (int64_t kind = 0; kind < kKinds; ++kind) {
    const at::Tensor& value = side_losses_[static_cast<size_t>(kind)];
    if (!value.defined()) continue;
    sums[kind][0].copy_(value.reshape({}).mul(ShareOf(static_cast<SideLossKind>(kind), parallel)));
    sums[kind][1].fill_(1);
  }
  RETURN_IF_ERROR(
      Annotate(parallel.world().AllReduce(sums, ReduceOp::kSum)->Wait(), "side losses"));
  sums = sums.cpu();
  std::map<std::string, double> losses;
  const double count = static_cast<double>(num_microbatches * num_moe_layers);
  for (int64_t kind = 0; kind < kKinds; ++kind) {
    const double* const row = sums.const_data_ptr<double>() + 2 * kind;
    if (row[1] > 0) losses[kSideLossNames[static_cast<size_t>(kind)]] = row[0] / count;
  }
  return losses;
}

}  // namespace muster
