// What an optimizer is, and who it talks to; both follow from a job's spec.
#pragma once

#include <limits>

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "worker/comm/communicator.h"
#include "worker/optim/grad_clip.h"
#include "worker/optim/muon.h"
#include "worker/optim/param_groups.h"
#include "worker/parallel/parallel_context.h"

namespace muster {

struct OptimizerOptions {
  // kMuon: matrices by Muon, all others by Adam (param_groups.scalar_optimizer).
  enum class Kind { kAdam, kSgd, kMuon };
  Kind kind = Kind::kAdam;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  MuonOptions muon;
  // Each data-parallel rank updates some whole parameters (dist_muon); see layer_wise.h.
  bool layer_wise = false;
  double clip_grad = 1.0;  // 0: no clipping; the norm is computed all the same
  bool log_num_zeros_in_grad = false;
  // A step whose norm, before clipping, is above it updates nothing (reference 7.3).
  double grad_norm_skip_threshold = std::numeric_limits<double>::infinity();
  bool skip_non_finite = false;  // fp16: a step with a gradient that is not finite is skipped
  ParamGroupOptions param_groups;

  // INVALID_ARGUMENT where Muon is combined with what it excludes.
  static absl::StatusOr<OptimizerOptions> FromSpec(const JobSpec& spec);
};

// Borrowed.
struct OptimizerGroups {
  GradStatsGroups stats;
  // The lists of parameter groups are united over it, so that every rank knows every group of the
  // job (reference 6.6); null: not.
  Communicator* world = nullptr;
  Communicator *tp = nullptr, *expert_tp = nullptr;     // Muon's matrices are split over them
  Communicator *dp_cp = nullptr, *expert_dp = nullptr;  // layer-wise: owners of whole parameters
  static OptimizerGroups Of(const ParallelContext& parallel, const JobSpec& spec);
};

}  // namespace muster
