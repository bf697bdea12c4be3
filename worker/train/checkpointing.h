// What a checkpoint of a job holds and how it is restored (reference 11). The container is
// worker/checkpoint's; this file knows the job. Collective over the job's ranks. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/train/job_state.h"

namespace muster {

// Saves to spec.checkpoint.save under the state's iteration. Errors: see SaveCheckpoint; the job
// can go on and try again.
absl::StatusOr<SavedCheckpoint> SaveJob(const JobState& state, int64_t epoch);

struct LoadedJob {
  std::string path;
  int64_t iteration = 0;           // of the checkpoint (with finetune the job itself begins at 0)
  bool weights_only = false;       // finetune or pretrained_checkpoint
  std::vector<std::string> notes;  // worth an event
};

// Restores weights, optimizer, schedules, RNG and progress from spec.checkpoint.load, or weights
// alone from pretrained_checkpoint. nullopt: there is nothing to load and that is allowed.
// FAILED_PRECONDITION names what differs between the checkpoint's model and the spec's.
absl::StatusOr<std::optional<LoadedJob>> LoadJob(JobState& state);

// For a recovery. The newest complete checkpoint that this job has saved (iteration; -1: none), as
// far as its ledger goes. Not collective.
absl::StatusOr<int64_t> NewestSaved(const JobSpec& spec, int64_t ledger_through);
// Does the one of `iteration` hold every element and every random state of a rank that is built
// from `spec`, so that none needs a value before it is loaded? Not collective.
bool SavedHoldsAll(const JobSpec& spec, int64_t iteration);
// Goes on from the one of `iteration` in spec.checkpoint.save.
absl::StatusOr<LoadedJob> LoadSaved(JobState& state, int64_t iteration);

// For generation: the spec inside a checkpoint, with every parallel size 1 and no dropout.
absl::StatusOr<JobSpec> SpecOfCheckpoint(const std::string& root, std::optional<int64_t> ckpt_step);
// Weights alone, into a state that was built from that spec.
absl::Status LoadWeights(JobState& state, const std::string& root,
                         std::optional<int64_t> ckpt_step);

}  // namespace muster
