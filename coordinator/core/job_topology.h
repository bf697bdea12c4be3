// The parallel layout that a spec asks for. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/topology/rank_topology.h"

namespace muster {

// INVALID_ARGUMENT as RankTopology::Create.
absl::StatusOr<RankTopology> TopologyOf(const JobSpec& spec);

}  // namespace muster
