// A training step between its first pass and its commit, as this rank holds it. What is in here
// when an attempt ends decides whether the step is finished or run again (common/recovery).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/control/agreement.h"
#include "common/control/messages.h"
#include "common/schedule/microbatches.h"
#include "worker/optim/optimizer.h"
#include "worker/parallel/rng.h"

namespace muster {

// A step with a rejected result that is neither committed nor run again here: the job leaves.
struct RejectedStep {
  bool checkpoint = false;  // of the step's beginning, to go on from elsewhere
  int exit_code = 0;        // 16 or 17 (reference 13.1)
  std::string reason;       // the same on every rank
  // All ranks have told the coordinator what they saw; they hold the step, and it decides.
  bool held = false;
};

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
  std::optional<double> params_norm;   // with training.log_params_norm, after the update
  BatchSizes batch;                    // that this step used
  double loss_scale = 1;               // that this step used
  StepDecision decision;               // of the agreement
  std::vector<Directive> directives;   // to act on at this step's end
  std::optional<RejectedStep> leaves;  // all else is without meaning then
};

struct OpenStep {
  // Put back when the step is dropped: it draws the same numbers when it is run again.
  RngSnapshot rng_at_start;
  // Final gradients, norms and reduced losses are here, and the agreement was entered: whoever
  // knows its result can commit, and needs nobody for it.
  bool prepared = false;
  // The update is running. Found true after an exception, the state is torn.
  bool committing = false;
  PreparedStep optimizer;
  TrainStepResult result;  // without what the commit fills in
};

// The newest agreement whose result committed a step here.
struct AgreedResult {
  AgreementVector vector{};
  int64_t iteration = 0;  // the step that it committed; 0: none
  int64_t epoch = 0;      // in which it was reached
};

}  // namespace muster
