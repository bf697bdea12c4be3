// A job's state from files: the newest checkpoint that the job has saved itself, else what
// checkpoint.load and pretrained_checkpoint name, else none of them: the beginning. Collective over
// the job's ranks. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "worker/provider/provider.h"
#include "worker/train/job_state.h"
#include "worker/train/trainer_host.h"

namespace muster {

struct FileRestore {
  const JobSpec& spec;
  CommunicatorPtr world;
  TrainerHost& host;  // hears the phases; rank 0's what was loaded, too
  const ProviderRegistry& providers;
  int64_t epoch = 0;
  c10::Device device = c10::kCPU;
  // Called once the state has its groups, before anything is loaded into it. Collective.
  std::function<absl::Status(JobState& state)> prepare;
  std::optional<int64_t> saved;  // iteration of the one in checkpoint.save that is gone on from
};

absl::StatusOr<std::unique_ptr<JobState>> RestoreFromFiles(const FileRestore& options);

}  // namespace muster
