// From a restored state to the end of the attempt: steps, evaluations, checkpoints, exits, and what
// is told of them (reference 12.1, 12.2). One thread.
#pragma once

#include "absl/status/statusor.h"
#include "worker/train/restore.h"
#include "worker/train/training.h"

namespace muster {

// `kept` has state and data. Collective over the job's ranks.
absl::StatusOr<TrainingResult> RunTrainingLoop(const TrainingOptions& options, AttemptState& kept,
                                               const Restored& restored);

}  // namespace muster
