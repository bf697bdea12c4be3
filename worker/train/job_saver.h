// Checkpoints while a job trains: saves, tells the host, and says when a save that failed is due
// again. Collective over the job's ranks: all of them see the same outcomes. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/clock.h"
#include "worker/train/job_state.h"
#include "worker/train/trainer_host.h"

namespace muster {

class JobSaver {
 public:
  // Borrows all of them. `epoch`: in the messages.
  JobSaver(JobState& state, TrainerHost& host, Clock& clock, int64_t epoch)
      : state_(state), host_(host), clock_(clock), epoch_(epoch) {}

  // A failed save is reported and tried again some iterations later; training goes on. An error
  // here is of a collective.
  absl::Status Save(const std::string& reason);
  // Is a save that failed to be tried again after this iteration?
  bool RetryIsDue() const;
  // The last save of a run, tried a few times. Returns why it failed, if it did; an error is of a
  // collective.
  absl::StatusOr<std::optional<std::string>> SaveForGood(const std::string& reason);

 private:
  absl::Status SaveOnce(const std::string& reason);

  JobState& state_;
  TrainerHost& host_;
  Clock& clock_;
  const int64_t epoch_;
  std::optional<int64_t> retry_at_;  // iteration
  int64_t retry_gap_ = 1;            // iterations
};

}  // namespace muster
