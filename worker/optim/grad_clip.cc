#include "worker/optim/grad_clip.h"

#include <cmath>
#include <utility>

#include <ATen/ops/tensor.h>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/flat_ops.h"

namespace muster {
namespace {

// What is added up over the groups. One entry a kind of parameter.
struct Sums {
  double values[2] = {0, 0};      // squares, or zeros
  double non_finite[2] = {0, 0};  // of the parameters of this rank, filtered ones too
};

// Adds over tp_pp and tp_ep_pp. Each group's reduction takes place on all of its members or on
// none.
absl::Status Reduce(const GradStatsGroups& groups, at::Device device, Sums& sums) {
  for (int kind = 0; kind < 2; ++kind) {
    Communicator& group = kind == 0 ? *groups.dense : *groups.expert;
    if (group.size() == 1 || (kind == 1 && !groups.has_experts)) continue;
    at::Tensor pair =
        at::tensor({sums.values[kind], sums.non_finite[kind]}, at::kDouble).to(device);
    RETURN_IF_ERROR(group.AllReduce(pair, ReduceOp::kSum)->Wait());
    pair = pair.cpu();
    sums.values[kind] = pair.const_data_ptr<double>()[0];
    sums.non_finite[kind] = pair.const_data_ptr<double>()[1];
  }
  return absl::OkStatus();
}

// Sum of squares of each unscaled gradient.
std::vector<double> GradSquares(const std::vector<ParameterPtr>& params, double unscale) {
  std::vector<double> squares(params.size(), 0.0);
  std::vector<size_t> unknown;
  std::vector<at::Tensor> grads;
  for (size_t i = 0; i < params.size(); ++i) {
    const Parameter& p = *params[i];
    MUSTER_CHECK_MSG(p.main_grad.defined() && !p.main_grad_is_zero,
                     "gradients are final only after FinalizeModelGrads");
    if (p.main_grad_squares.has_value() && unscale == 1.0) {
      squares[i] = *p.main_grad_squares;
      continue;
    }
    unknown.push_back(i);
    grads.push_back(p.main_grad);
  }
  const std::vector<double> sums = SumsOfSquares(grads, unscale);
  for (size_t i = 0; i < unknown.size(); ++i) squares[unknown[i]] = sums[i];
  return squares;
}

at::Device DeviceOf(const std::vector<ParameterPtr>& params) {
  return params.empty() ? at::Device(at::kCPU) : params[0]->data.device();
}

}  // namespace

GradStatsGroups GradStatsGroups::Of(const ParallelContext& parallel, bool has_experts) {
  return {.dense = &parallel.Group("tp_pp"),
          .expert = &parallel.Group("tp_ep_pp"),
          .tp_rank = parallel.coordinates().tp,
          .expert_tp_rank = parallel.coordinates().expert_tp,
          .has_experts = has_experts};
}

bool CountsInNorm(const Parameter& parameter, const GradStatsGroups& groups) {
  if (parameter.shared) return false;
  const int rank = parameter.allreduce ? groups.tp_rank : groups.expert_tp_rank;
  return parameter.tensor_model_parallel || rank == 0;
}

absl::StatusOr<GradStats> ComputeGradStats(const std::vector<ParameterPtr>& params, double unscale,
                                           const GradStatsGroups& groups) {
  Sums sums;
  const std::vector<double> squares_of = GradSquares(params, unscale);
  for (size_t i = 0; i < params.size(); ++i) {
    const ParameterPtr& p = params[i];
    const double squares = squares_of[i];
    const int kind = p->allreduce ? 0 : 1;
    // In fp64 the squares of finite fp32 values cannot overflow.
    if (!std::isfinite(squares)) sums.non_finite[kind] += 1;
    if (CountsInNorm(*p, groups)) sums.values[kind] += squares;
  }
  RETURN_IF_ERROR(Annotate(Reduce(groups, DeviceOf(params), sums), "gradient norm"));
  return GradStats{.norm = std::sqrt(sums.values[0] + sums.values[1]),
                   .found_inf = sums.non_finite[0] + sums.non_finite[1] > 0};
}

double ClipCoefficient(double clip_grad, double norm) {
  if (clip_grad <= 0) return 1;
  const double coefficient = clip_grad / (norm + 1e-6);
  return coefficient < 1 ? coefficient : 1;
}

absl::StatusOr<int64_t> CountGradZeros(const std::vector<ParameterPtr>& params, double factor,
                                       const GradStatsGroups& groups) {
  Sums sums;
  for (const ParameterPtr& p : params) {
    if (!CountsInNorm(*p, groups)) continue;
    sums.values[p->allreduce ? 0 : 1] += static_cast<double>(CountZeros(p->main_grad, factor));
  }
  RETURN_IF_ERROR(Annotate(Reduce(groups, DeviceOf(params), sums), "zeros in gradients"));
  return static_cast<int64_t>(sums.values[0] + sums.values[1]);
}

absl::StatusOr<double> ComputeNorm(const std::vector<ParameterPtr>& params,
                                   const std::vector<at::Tensor>& values,
                                   const GradStatsGroups& groups) {
  Sums sums;
  const std::vector<double> squares = SumsOfSquares(values);
  for (size_t i = 0; i < params.size(); ++i) {
    if (!CountsInNorm(*params[i], groups)) continue;
    sums.values[params[i]->allreduce ? 0 : 1] += squares[i];
  }
  RETURN_IF_ERROR(Annotate(Reduce(groups, DeviceOf(params), sums), "parameter norm"));
  return std::sqrt(sums.values[0] + sums.values[1]);
}

}  // namespace muster
