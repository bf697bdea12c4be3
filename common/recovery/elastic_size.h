// How many data-parallel replicas a job can have (design 3). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/job_spec.h"

namespace muster {

// The largest dp <= `replicas` that the job can be run with: global_batch_size divisible by
// micro_batch_size * dp, and whatever other rules of validate.h depend on dp (expert parallelism,
// ramp-up, optimizer instances). 0: none.
int64_t LargestDataParallelSize(const JobSpec& spec, int64_t replicas);

// Ranks of one replica: tp * cp * pp. Expert parallelism spans replicas; a dp that it does not
// divide is refused by LargestDataParallelSize, too.
int64_t RanksOfReplica(const JobSpec& spec);

// The spec of the same job with `dp` replicas: resources.world_size changes, the global batch does
// not (it is written down where it was left to default). INVALID_ARGUMENT names the rule that such
// a job breaks.
absl::StatusOr<std::string> SpecWithReplicas(absl::string_view spec_json, int64_t dp);

}  // namespace muster
