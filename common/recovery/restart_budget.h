// How often a job may fail before it is given up (design 3; recovery.max_restarts,
// recovery.restart_window_s, recovery.max_failures_of_step). Pure.
//
// A recovery that is hit by another failure before any step was committed is the same incident
// going on: it costs nothing of the window's budget, but counts for the step. Steps that are run
// again after a rollback end the incident, but are no progress of the step that failed.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"

namespace muster {

struct RestartBudgetOptions {
  int64_t max_restarts = 3;
  absl::Duration window = absl::Hours(1);  // restarts older than this do not count
  int64_t max_failures_of_step = 3;        // the same step, without being committed in between
};

// How a failure looks to the budget.
struct FailureAt {
  int64_t iteration = 0;    // committed steps at that time
  bool in_step = false;     // the trainers had begun the step after it
  bool by_trainer = false;  // a trainer ended or gave up by itself: not a lost node, not a kill
};

struct RestartVerdict {
  bool restart = true;
  bool poisoned = false;      // the same step, by trainers themselves, at least twice
  int64_t step_failures = 0;  // of this step, this one included
  std::string reason;         // why not, or what is suspected; for people
};

class RestartBudget {
 public:
  explicit RestartBudget(const RestartBudgetOptions& options) : options_(options) {}

  RestartVerdict OnFailure(const FailureAt& failure, absl::Time now);
  // A step was committed, for the first time or again.
  void OnCommitted(int64_t iteration);

  // What a journal keeps.
  struct State {
    std::deque<absl::Time> restarts;
    int64_t failed_step = -1, step_failures = 0, trainer_failures = 0;
    bool incident = false;
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  void Restore(const State& state) { state_ = state; }

 private:
  const RestartBudgetOptions options_;
  State state_;
};

}  // namespace muster
