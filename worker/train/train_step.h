// One training step (reference 12.3): forward and backward passes, final gradients, the agreement
// that commits the step, the optimizer, the reduced loss. One thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/control/messages.h"
#include "worker/train/job_data.h"
#include "worker/train/job_state.h"
#include "worker/train/step_agreement.h"
#include "worker/train/timers.h"

namespace muster {

struct TrainStepResult {
  std::map<std::string, double>
      losses;  // last stage only: reduced over dp_cp; "lm loss" and whatever else is reported
  // Of the MoE layers, by Megatron's names ("load_balancing_loss"), over their coefficients; the
  // same on every rank.
  std::map<std::string, double> side_losses;
  // found_inf, or a norm above optimizer.grad_norm_skip_threshold: parameters unchanged; the
  // samples are consumed all the same.
  bool skipped = false;
  std::optional<double> grad_norm;  // none with found_inf
  std::optional<int64_t> num_zeros;
  std::optional<double> params_norm;  // with training.log_params_norm, after the update
  BatchSizes batch;                   // that this step used
  double loss_scale = 1;              // that this step used
  StepDecision decision;              // of the agreement
  std::vector<Directive> directives;  // to act on at this step's end
};

// Collective. On return the step is committed on every rank, and `state` is advanced except for
// progress.iteration and the FLOPs. INTERNAL "iteration k: loss is nan ..." when a result is
// rejected on any rank (rerun.mode validate_results).
absl::StatusOr<TrainStepResult> TrainStep(JobState& state, const DataIterators& data,
                                          StepAgreement& agreement, ExitWish wish, Timers& timers);

}  // namespace muster
