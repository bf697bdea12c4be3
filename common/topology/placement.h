// Ranks onto workers. A tensor-parallel group talks in every layer, so its ranks share a node where
// that is possible; ranks that are neighbours in rank order get neighbouring devices. Pure and
// deterministic: the order in which workers are listed does not matter.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/topology/rank_topology.h"

namespace muster {

struct PlacementWorker {
  std::string name;  // unique
  std::string node;
  int device_index = 0;  // neighbouring numbers: neighbouring devices of the node
};

struct Placement {
  std::vector<size_t> worker_of_rank;  // index into the workers given; each at most once
  int num_split_tensor_groups = 0;     // tensor-parallel groups that span nodes
};

// The rule: tensor-parallel groups in rank order fill one node after the other (nodes by name,
// numbers as numbers), so that pipeline neighbours are as near as their distance in rank order
// allows. As many groups as possible lie on one node; where all can, the fewest nodes are used,
// those with more free workers first, and the smallest that will do in the last place. Surplus
// workers stay free. FAILED_PRECONDITION when there are fewer workers than ranks.
absl::StatusOr<Placement> PlaceRanks(const RankTopology& topology,
                                     const std::vector<PlacementWorker>& workers);

// "node2" before "node10": digits compare as numbers.
bool NaturalLess(const std::string& a, const std::string& b);

}  // namespace muster
