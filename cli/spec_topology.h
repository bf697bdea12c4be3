// The parallel layout of a spec, as --json and tables show it. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/spec/job_spec.h"
#include "common/topology/rank_topology.h"
#include "nlohmann/json_fwd.hpp"

namespace muster {

// INVALID_ARGUMENT as RankTopology::Create.
absl::StatusOr<RankTopology> RanksOf(const JobSpec& spec);

// world_size, ranks (worker, node and device: null), groups.
nlohmann::ordered_json TopologyToJson(const RankTopology& topology);

}  // namespace muster
