#include "cli/spec_topology.h"

#include "common/schedule/from_spec.h"
#include "nlohmann/json.hpp"

namespace muster {

absl::StatusOr<RankTopology> RanksOf(const JobSpec& spec) {
  return RankTopology::Create(TopologyOf(spec));
}

nlohmann::ordered_json TopologyToJson(const RankTopology& topology) {
  nlohmann::ordered_json json;
  json["world_size"] = topology.world_size();
  json["ranks"] = nlohmann::ordered_json::array();
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const RankCoordinates at = topology.Coordinates(rank);
    json["ranks"].push_back({{"rank", rank},
                             {"tp", at.tp},
                             {"cp", at.cp},
                             {"ep", at.ep},
                             {"expert_tp", at.expert_tp},
                             {"dp", at.dp},
                             {"expert_dp", at.expert_dp},
                             {"pp", at.pp},
                             {"worker", nullptr},
                             {"node", nullptr},
                             {"device", nullptr}});
  }
  json["groups"] = nlohmann::ordered_json::object();
  for (const auto& [name, table] : topology.groups()) json["groups"][name] = table;
  return json;
}

}  // namespace muster
