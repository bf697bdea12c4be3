#include "worker/optim/grad_clip.h"

#include <cmath>

#include <ATen/ops/tensor.h>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/optim/main_params.h"
#include "worker/parallel/flat_ops.h"

namespace muster {
namespace {

// What is added up over the groups. One entry a kind of parameter.
struct Sums {
  double values[2] = {0, 0};      // squares, or zeros
  double non_finite[2] = {0, 0};  // of the parameters of this rank, filtered ones too
};

// Adds the sums of kinds [first, last) over `group`, in one reduction.
absl::Status AddUp(Communicator& group, c10::Device device, int first, int last, Sums& sums) {
  if (group.size() == 1) return absl::OkStatus();
  std::vector<double> values;
  for (int kind = first; kind < last; ++kind) {
    values.push_back(sums.values[kind]);
    values.push_back(sums.non_finite[kind]);
  }
  at::Tensor added = at::tensor(values, at::kDouble).to(device);
  RETURN_IF_ERROR(group.AllReduce(added, ReduceOp::kSum)->Wait());
  added = added.cpu();
  for (int kind = first; kind < last; ++kind) {
    sums.values[kind] = added.const_data_ptr<double>()[2 * (kind - first)];
    sums.non_finite[kind] = added.const_data_ptr<double>()[2 * (kind - first) + 1];
  }
  return absl::OkStatus();
}

// Adds dense parameters' sums over one group and experts' over the other; equal groups take one
// reduction (reference 7.3). Each takes place on all of the group's members or on none.
absl::Status Reduce(Communicator& dense, Communicator& expert, const GradStatsGroups& groups,
                    Sums& sums) {
  if (!groups.has_experts) return AddUp(dense, groups.device, 0, 1, sums);
  if (dense.ranks() == expert.ranks()) return AddUp(dense, groups.device, 0, 2, sums);
  RETURN_IF_ERROR(AddUp(dense, groups.device, 0, 1, sums));
  return AddUp(expert, groups.device, 1, 2, sums);
}

// Sum of squares of each unscaled gradient.
std::vector<double> GradSquares(const std::vector<OwnedShard>& shards, double unscale) {
  std::vector<double> squares(shards.size(), 0.0);
  std::vector<size_t> unknown;
  std::vector<at::Tensor> grads;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Parameter& p = *shards[i].parameter;
    MUSTER_CHECK_MSG(GradOf(shards[i]).defined() && !p.main_grad_is_zero,
                     "gradients are final only after FinalizeModelGrads");
    if (p.main_grad_squares.has_value() && unscale == 1.0 && shards[i].is_whole()) {
      squares[i] = *p.main_grad_squares;
      continue;
    }
    unknown.push_back(i);
    grads.push_back(GradOf(shards[i]));
  }
  const std::vector<double> sums = SumsOfSquares(grads, unscale);
  for (size_t i = 0; i < unknown.size(); ++i) squares[unknown[i]] = sums[i];
  return squares;
}

}  // namespace

GradStatsGroups GradStatsGroups::Of(const ParallelContext& parallel, bool has_experts,
                                    bool use_distributed_optimizer) {
  return {.dense = &parallel.Group(use_distributed_optimizer ? "intra_dist_opt" : "tp_pp"),
          .expert = &parallel.Group(use_distributed_optimizer ? "intra_dist_opt" : "tp_ep_pp"),
          .tp_rank = parallel.coordinates().tp,
          .expert_tp_rank = parallel.coordinates().expert_tp,
          .has_experts = has_experts};
}

bool CountsInNorm(const Parameter& parameter, const GradStatsGroups& groups) {
  if (parameter.shared) return false;
  const int rank = parameter.allreduce ? groups.tp_rank : groups.expert_tp_rank;
  return parameter.tensor_model_parallel || rank == 0;
}

absl::StatusOr<GradStats> ComputeGradStats(const std::vector<OwnedShard>& shards, double unscale,
                                           const GradStatsGroups& groups) {
  Sums sums;
  const std::vector<double> squares_of = GradSquares(shards, unscale);
  for (size_t i = 0; i < shards.size(); ++i) {
    const Parameter& p = *shards[i].parameter;
    const double squares = squares_of[i];
    const int kind = p.allreduce ? 0 : 1;
    // In fp64 the squares of finite fp32 values cannot overflow.
    if (!std::isfinite(squares)) sums.non_finite[kind] += 1;
    if (CountsInNorm(p, groups)) sums.values[kind] += squares;
  }
  RETURN_IF_ERROR(Annotate(Reduce(*groups.dense, *groups.expert, groups, sums), "gradient norm"));
  return GradStats{.norm = std::sqrt(sums.values[0] + sums.values[1]),
                   .found_inf = sums.non_finite[0] + sums.non_finite[1] > 0};
}

double ClipCoefficient(double clip_grad, double norm) {
  if (clip_grad <= 0) return 1;
  const double coefficient = clip_grad / (norm + 1e-6);
  return coefficient < 1 ? coefficient : 1;
}

absl::StatusOr<int64_t> CountGradZeros(const std::vector<OwnedShard>& shards, double factor,
                                       const GradStatsGroups& groups) {
  Sums sums;
  for (const OwnedShard& shard : shards) {
    const Parameter& p = *shard.parameter;
    if (!CountsInNorm(p, groups)) continue;
    sums.values[p.allreduce ? 0 : 1] += static_cast<double>(CountZeros(GradOf(shard), factor));
  }
  RETURN_IF_ERROR(
      Annotate(Reduce(*groups.dense, *groups.expert, groups, sums), "zeros in gradients"));
  return static_cast<int64_t>(sums.values[0] + sums.values[1]);
}

absl::StatusOr<double> ComputeNorm(const std::vector<OwnedShard>& shards,
                                   const std::vector<at::Tensor>& values,
                                   const GradStatsGroups& groups, Communicator* dense_owners,
                                   Communicator* expert_owners) {
  Sums sums;
  const std::vector<double> squares = SumsOfSquares(values);
  for (size_t i = 0; i < shards.size(); ++i) {
    const Parameter& p = *shards[i].parameter;
    if (CountsInNorm(p, groups)) sums.values[p.allreduce ? 0 : 1] += squares[i];
  }
  if (dense_owners != nullptr && expert_owners != nullptr) {
    RETURN_IF_ERROR(
        Annotate(Reduce(*dense_owners, *expert_owners, groups, sums), "parameter norm"));
  }
  RETURN_IF_ERROR(Annotate(Reduce(*groups.dense, *groups.expert, groups, sums), "parameter norm"));
  return std::sqrt(sums.values[0] + sums.values[1]);
}

}  // namespace muster
