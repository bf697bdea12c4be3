// Do the data-parallel replicas of a job hold the same parameters? (Reference 12.5; Megatron:
// check_param_hashes_across_dp_replicas.) One thread.
#pragma once

#include "absl/status/status.h"
#include "worker/train/job_state.h"

namespace muster {

// Compares the SHA-1 of each parameter's fp32 copy over dp (experts: expert_dp), not over cp. What
// a pending gather would bring is gathered first. Collective over the job's ranks, none of which
// returns before all have compared. INTERNAL, on every rank: where replicas differ, naming the
// first parameter and who holds what.
absl::Status CheckReplicas(JobState& state);

}  // namespace muster
