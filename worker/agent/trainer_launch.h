// How a trainer's process is started for an assignment: its environment, its log, its cores.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "worker/agent/trainer_process.h"
#include "worker/core/agent_machine.h"
#include "worker/core/core_split.h"

namespace muster {

struct TrainerLaunchOptions {
  const std::string& program;                       // muster-trainer
  const std::string& log_folder;                    // of all jobs
  const std::map<std::string, WorkerCores>& cores;  // by worker; those that are missing: not bound
};

struct TrainerLaunch {
  TrainerProcess::Options process;
  std::string log_problem;  // not empty: why it starts without a log (a full disk)
};

// Makes the log's folder. UNAVAILABLE: it cannot be made, and not for lack of room.
absl::StatusOr<TrainerLaunch> PrepareLaunch(const StartTrainerAction& action, const JobSpec& spec,
                                            const TrainerLaunchOptions& options);

}  // namespace muster
