#include "common/recovery/restart_budget.h"

#include "absl/strings/str_cat.h"

namespace muster {

RestartVerdict RestartBudget::OnFailure(const FailureAt& failure, absl::Time now) {
  while (!state_.restarts.empty() && state_.restarts.front() + options_.window <= now) {
    state_.restarts.pop_front();
  }
  const int64_t step = failure.iteration + 1;
  if (step != state_.failed_step) {
    state_.failed_step = step;
    state_.step_failures = state_.trainer_failures = 0;
  }
  ++state_.step_failures;
  // Where nothing but deaths of trainers has come since one in this step, the next was most likely
  // in it, too: a trainer's last words are not always heard.
  const bool in_step = failure.in_step || (state_.trainer_failures > 0 &&
                                           state_.step_failures == state_.trainer_failures + 1);
  if (in_step && failure.by_trainer) ++state_.trainer_failures;

  RestartVerdict verdict;
  verdict.step_failures = state_.step_failures;
  verdict.poisoned = state_.trainer_failures >= 2;
  if (verdict.poisoned) {
    verdict.reason = absl::StrCat("step ", step, " ended its trainers ", state_.trainer_failures,
                                  " times: its batch is suspected");
  }
  const bool same_incident = state_.incident;
  state_.incident = true;
  if (options_.max_restarts <= 0) {
    verdict.restart = false;
    verdict.reason = "recovery.max_restarts=0: the first failure ends the job";
    return verdict;
  }
  if (state_.step_failures >= options_.max_failures_of_step) {
    verdict.restart = false;
    verdict.reason = absl::StrCat("step ", step, " failed ", state_.step_failures,
                                  " times without being committed (recovery.max_failures_of_step=",
                                  options_.max_failures_of_step, ")",
                                  verdict.poisoned ? "; its batch is suspected" : "");
    return verdict;
  }
  if (same_incident) return verdict;
  if (static_cast<int64_t>(state_.restarts.size()) >= options_.max_restarts) {
    verdict.restart = false;
    verdict.reason = absl::StrCat(
        state_.restarts.size(), " restarts within ", absl::FormatDuration(options_.window),
        " are used up (recovery.max_restarts=", options_.max_restarts, ")");
    return verdict;
  }
  state_.restarts.push_back(now);
  return verdict;
}

void RestartBudget::OnCommitted(int64_t iteration) {
  state_.incident = false;
  // Steps before the one that failed are run again after a rollback: no progress yet.
  if (iteration < state_.failed_step) return;
  state_.failed_step = -1;
  state_.step_failures = state_.trainer_failures = 0;
}

}  // namespace muster
