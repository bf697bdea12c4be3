// What a job does between two steps and what is no training time: evaluations and checkpoints. The
// time per iteration leaves them out, the host hears their phases. Collective over the job's ranks.
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/runtime/clock.h"
#include "worker/train/job_data.h"
#include "worker/train/job_saver.h"
#include "worker/train/job_state.h"
#include "worker/train/step_reporter.h"
#include "worker/train/timers.h"
#include "worker/train/trainer_host.h"

namespace muster {

class TrainingPauses {
 public:
  struct Options {
    JobState& state;
    const JobData& data;
    Timers& timers;  // "interval-time" stands still meanwhile
    StepReporter& reporter;
    TrainerHost& host;
    Clock& clock;
    int64_t epoch = 0;
  };
  explicit TrainingPauses(const Options& options);

  // On "valid" or "test". `final`: the job's last one of it.
  absl::Status Evaluate(const std::string& split, bool final);
  // JobSaver's.
  absl::Status Save(const std::string& reason);
  bool SaveIsDueAgain() const { return saver_.RetryIsDue(); }
  absl::StatusOr<std::optional<std::string>> SaveForGood(const std::string& reason);

 private:
  class Pause;

  const Options options_;
  JobSaver saver_;
};

}  // namespace muster
