// The start of a trainer's process, with the channels between it and its agent.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

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
                                   const TrainerChannels& channels, const std::string& life_lock);

// How a process that is dying, or has died and is not reaped, will be reported; nullopt: it is not,
// it ends without an error, or the kernel does not say.
std::optional<TrainerExit> DyingWith(pid_t pid);

absl::Status ErrnoStatus(int error, absl::string_view what);

}  // namespace muster
