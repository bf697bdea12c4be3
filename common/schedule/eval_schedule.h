// When to evaluate, and on what (reference 12.4 and 12.1). The same code runs in the coordinator
// (which records the results) and in the trainer, so that a coordinator that is away changes
// nothing. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

struct EvalScheduleOptions {
  std::optional<int64_t> eval_interval;  // iterations; not set: only at the end (and on request)
  int64_t eval_iters = 0;                // 0: no evaluation at all
  bool at_start = false;
  int64_t start_eval_at_iter = 0;
  bool do_valid = true, do_test = true;  // whether there is such data
};

struct EvalDecision {
  bool evaluate = false;
  std::string reason;  // also why not
  bool operator==(const EvalDecision&) const = default;
};

// Before the first step of a run that begins (or resumes) at `start_iteration`. Only a run from
// iteration 0 evaluates here: a resumed one has done it.
EvalDecision EvaluateAtStart(const EvalScheduleOptions& options, int64_t start_iteration);

// After step `iteration` (its number after the increment). `requested` is not empty when an
// evaluate directive became due at this step: its reason. Requests pass start_eval_at_iter.
EvalDecision EvaluateAfterStep(const EvalScheduleOptions& options, int64_t iteration,
                               const std::string& requested);

// After the last step. A run that left its loop early (signal, duration, exit_interval, stop) has
// none.
struct FinalEvaluations {
  bool valid = false, test = false;
  std::string reason;
};
FinalEvaluations EvaluateAtEnd(const EvalScheduleOptions& options, bool left_early);

// The iteration after which the schedule evaluates next, for a job that has completed `iteration`
// of `train_iters`: an interval's, else the last. nullopt: none is due any more, or there are none.
std::optional<int64_t> NextEvaluation(const EvalScheduleOptions& options, int64_t iteration,
                                      int64_t train_iters);

// Microbatches of an evaluation iteration: eval batch / (micro batch * dp); INVALID_ARGUMENT when
// that does not divide.
absl::StatusOr<int64_t> EvalMicrobatches(int64_t eval_global_batch_size, int64_t micro_batch_size,
                                         int64_t data_parallel_size);

}  // namespace muster
