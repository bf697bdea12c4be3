// The forward and backward passes of a step or of an evaluation, on this rank's chunks: the
// schedule and what its executor needs, from the job's state. Collective over the pipeline. One
// thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/train/forward_backward.h"
#include "worker/train/job_data.h"
#include "worker/train/job_state.h"

namespace muster {

struct PassesOptions {
  int64_t num_microbatches = 1;
  int64_t micro_batch_size = 1;
  bool forward_only = false;
  double loss_scale = 1;
};

// Reports are on the last stage only. Errors: see RunForwardBackward.
absl::StatusOr<ForwardBackwardResult> RunPasses(JobState& state, const DataIterators& data,
                                                const PassesOptions& options);

}  // namespace muster
