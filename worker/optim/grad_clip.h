// The global gradient norm, its clipping, and zeros in gradients (reference 7.3; Megatron:
// clip_grads.py, get_grad_norm_fp32).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/parameter.h"

namespace muster {

// Whose gradients make up the norm: those of one model replica. Data-parallel ranks hold equal
// gradients and stay out. Borrowed.
struct GradStatsGroups {
  Communicator* dense = nullptr;   // tp_pp
  Communicator* expert = nullptr;  // tp_ep_pp
  int tp_rank = 0, expert_tp_rank = 0;
  bool has_experts = false;  // anywhere in the job: decides whether `expert` is reduced over
  static GradStatsGroups Of(const ParallelContext& parallel, bool has_experts);
};

// False for what another rank or stage counts: the tied copy of the embedding, and parameters that
// are replicated over tp on all ranks but the first.
bool CountsInNorm(const Parameter& parameter, const GradStatsGroups& groups);

struct GradStats {
  double norm = 0;         // L2 of unscale * gradients, over the groups
  bool found_inf = false;  // a gradient that is not finite, on any member
};
// Reads every main_grad once (not those whose main_grad_squares is known). Errors: those of the
// collectives.
absl::StatusOr<GradStats> ComputeGradStats(const std::vector<ParameterPtr>& params, double unscale,
                                           const GradStatsGroups& groups);

// c = clip_grad / (norm + 1e-6) if below 1, else 1; 1 also where clip_grad is not above 0 or the
// norm is NaN.
double ClipCoefficient(double clip_grad, double norm);

// How many gradients are exactly zero after unscaling and clipping, under the norm's filter.
absl::StatusOr<int64_t> CountGradZeros(const std::vector<ParameterPtr>& params, double factor,
                                       const GradStatsGroups& groups);

// L2 norm of `values` (one tensor a parameter: the main parameters) under the same filter.
absl::StatusOr<double> ComputeNorm(const std::vector<ParameterPtr>& params,
                                   const std::vector<at::Tensor>& values,
                                   const GradStatsGroups& groups);

}  // namespace muster
