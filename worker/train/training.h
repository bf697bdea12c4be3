// One attempt at a job on this rank, from built communicators to its end: what pretrain() does
// (reference 12.1), from where the attempt before has ended (restore.h). The same code serves the
// daemon and tests that run ranks as threads. One thread.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "common/rerun/rerun_machine.h"
#include "common/runtime/clock.h"
#include "common/spec/job_spec.h"
#include "worker/comm/communicator.h"
#include "worker/provider/provider.h"
#include "worker/train/attempt_state.h"
#include "worker/train/restore.h"
#include "worker/train/trainer_host.h"

namespace muster {

struct TrainingOptions {
  const JobSpec& spec;    // validated
  CommunicatorPtr world;  // of resources.world_size members, and then helpers
  TrainerHost& host;
  const ProviderRegistry& providers;
  Clock& clock;
  int64_t epoch = 0;               // in every message
  int64_t directives_through = 0;  // applied before this attempt
  c10::Device device = c10::kCPU;
  absl::Duration
      process_start;        // clock.Steady() when this process began, for exit_duration_in_mins
  std::string job_id = {};  // in the tracker file of rejected results; empty: none
  RerunPlace place = {};    // this rank's hardware: the same place, the same errors
  std::string examine_json = {};  // of the assignment
  AttemptState* kept = nullptr;   // what attempts before have left, and this one leaves; null:
                                  // nothing
  int buddy = -1;                 // rank that keeps a copy of this one's snapshots; -1: nobody
  int64_t ledger_through = 0;     // iterations that the coordinator's ledger holds
  absl::Duration form_time = {};  // that the world took to form; to be told
};

struct TrainingResult {
  int exit_code = 0;
  std::string reason;  // "trained 300 iterations", "exit_interval=100 divides iteration 200", ...
  int64_t iteration = 0;  // completed
  bool yielded = false;   // the job goes on in another epoch, with what is kept here
  bool told = false;      // the agent has been told so
  bool helped = false;    // as a helper, which is not needed any more
};

// Errors are those of this rank; a collective's failure has the collective's code (UNAVAILABLE,
// ABORTED, DEADLINE_EXCEEDED).
absl::StatusOr<TrainingResult> RunTraining(const TrainingOptions& options);

}  // namespace muster
