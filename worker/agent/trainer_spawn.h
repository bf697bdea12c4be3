// The start of a trainer's process, with the channels between it and its agent.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/runtime/fd.h"
#include "worker/agent/trainer_process.h"

namespace muster {

// The agent's ends do not block.
struct TrainerChannels {
  Fd control, control_child;
  Fd log, log_child;
};
absl::StatusOr<TrainerChannels> MakeTrainerChannels();

// On its cores, where `options` names some and they can be had. Errors as TrainerProcess::Start.
absl::StatusOr<pid_t> SpawnTrainer(const TrainerProcess::Options& options,
                                   const TrainerChannels& channels);

absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace muster
