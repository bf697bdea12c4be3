// Which parts of a job's state a rank holds, as numbers. Two ranks that hold the same piece hold
// the same bits after each committed step: replicas of data (and context) parallelism, unless the
// optimizer or the parameters are sharded over them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/topology/rank_topology.h"

namespace muster {

struct StatePieces {
  // Sizes, order and sharding as one text. Sizes of data and context parallelism are in it only
  // where they cut the state: with full replicas, survivors of an elastic change hold what they
  // need.
  std::string layout;
  int64_t num_pieces = 0;
  std::vector<std::vector<int64_t>> of_rank;  // sorted
};
// Dense parameters with their optimizer state are a piece, experts' another, since they are
// replicated over other groups. Sharded optimizer state (distributed optimizer, FSDP, dist_muon):
// one a rank of the group that shares it; instances of the distributed optimizer are replicas,
// unless the outer strategy cuts over them, too. data_parallel_random_init: RNG states differ over
// dp, so each rank's is its own. RNG states belong to (pp, tp) and travel with the dense piece.
StatePieces PiecesOf(const JobSpec& spec, const RankTopology& topology);

}  // namespace muster
