#include "common/recovery/state_pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/data_sharding.h"

namespace muster {
namespace {

// What cuts one kind of parameters beyond model parallelism.
struct Cut {
  std::string group;  // name of RankTopology::groups(); empty: whole replicas
  int64_t size = 1;   // of that group
};

Cut CutOver(const std::string& group, const RankTopology& topology) {
  return {group, static_cast<int64_t>(topology.GroupOf(group, 0).size())};
}

int64_t PositionIn(const Cut& cut, const RankTopology& topology, int rank) {
  if (cut.group.empty()) return 0;
  const std::vector<int> members = topology.GroupOf(cut.group, rank);
  return std::find(members.begin(), members.end(), rank) - members.begin();
}

}  // namespace

StatePieces PiecesOf(const JobSpec& spec, const RankTopology& topology) {
  const DataSharding sharding = DataShardingOf(spec.parallel);
  const bool whole_world = spec.training.data_parallel_random_init ||
                           sharding.optimizer_over_instances ||
                           spec.optimizer.optimizer == "dist_muon";
  const bool sharded = whole_world || sharding.optimizer || sharding.parameters;
  const bool has_experts = spec.model.num_experts.has_value();
  Cut dense, experts;
  if (sharded) {
    dense = CutOver(whole_world ? "dp_cp" : "intra_dp_cp", topology);
    experts = CutOver(whole_world ? "expert_dp" : "intra_expert_dp", topology);
  }

  StatePieces pieces;
  absl::StrAppend(&pieces.layout, spec.parallel.order, " tp", topology.tp(), " pp", topology.pp(),
                  "x", spec.parallel.virtual_pipeline_model_parallel_size.value_or(1));
  if (has_experts) absl::StrAppend(&pieces.layout, " ep", topology.ep(), " etp", topology.etp());
  if (sharded) absl::StrAppend(&pieces.layout, " ", dense.group, dense.size);
  if (sharded && has_experts) absl::StrAppend(&pieces.layout, " ", experts.group, experts.size);

  const int64_t num_dense = int64_t{topology.pp()} * topology.tp() * dense.size;
  const int64_t num_experts =
      has_experts ? int64_t{topology.pp()} * topology.ep() * topology.etp() * experts.size : 0;
  pieces.num_pieces = num_dense + num_experts;
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const RankCoordinates at = topology.Coordinates(rank);
    std::vector<int64_t>& mine = pieces.of_rank.emplace_back();
    mine.push_back((int64_t{at.pp} * topology.tp() + at.tp) * dense.size +
                   PositionIn(dense, topology, rank));
    if (!has_experts) continue;
    mine.push_back(num_dense +
                   ((int64_t{at.pp} * topology.ep() + at.ep) * topology.etp() + at.expert_tp) *
                       experts.size +
                   PositionIn(experts, topology, rank));
  }
  return pieces;
}

}  // namespace muster
