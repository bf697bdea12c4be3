// The global gradient norm, its clipping, and zeros in gradients (reference 7.3; Megatron:
// clip_grads.py, get_grad_norm_fp32).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/owned_shard.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/parameter.h"

namespace muster {

// Whose gradients make up the norm: those of one model replica. Data-parallel ranks hold equal
// gradients and stay out; with the distributed optimizer each holds its shards, and the group is
// its optimizer instance. Borrowed.
struct GradStatsGroups {
  Communicator* dense = nullptr;   // tp_pp, or intra_dist_opt
  Communicator* expert = nullptr;  // tp_ep_pp, or intra_dist_opt
  int tp_rank = 0, expert_tp_rank = 0;
  bool has_experts = false;  // anywhere in the job: decides whether `expert` is reduced over
  c10::Device device = c10::Device(c10::kCPU);  // of what is reduced
  static GradStatsGroups Of(const ParallelContext& parallel, bool has_experts,
                            bool use_distributed_optimizer = false);
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
absl::StatusOr<GradStats> ComputeGradStats(const std::vector<OwnedShard>& shards, double unscale,
                                           const GradStatsGroups& groups);

// c = clip_grad / (norm + 1e-6) if below 1, else 1; 1 also where clip_grad is not above 0 or the
// norm is NaN.
double ClipCoefficient(double clip_grad, double norm);

// How many gradients are exactly zero after unscaling and clipping, under the norm's filter.
absl::StatusOr<int64_t> CountGradZeros(const std::vector<OwnedShard>& shards, double factor,
                                       const GradStatsGroups& groups);

// L2 norm of `values` (one tensor a shard: the main parameters) under the same filter. Where a
// replica's values are spread over data-parallel ranks that `groups` leaves out, they are added up
// over `dense_owners` and `expert_owners` first.
absl::StatusOr<double> ComputeNorm(const std::vector<OwnedShard>& shards,
                                   const std::vector<at::Tensor>& values,
                                   const GradStatsGroups& groups,
                                   Communicator* dense_owners = nullptr,
                                   Communicator* expert_owners = nullptr);

}  // namespace muster
