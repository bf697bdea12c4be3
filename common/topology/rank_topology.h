// Rank <-> (tp, cp, ep, dp, pp) coordinates and the groups of reference 1 (Megatron's
// RankGenerator, dense and expert). Pure. Order string: the leftmost axis varies fastest; default
// "tp-cp-ep-dp-pp".
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct TopologySpec {
  int world_size = 1;
  int tp = 1, cp = 1, pp = 1, ep = 1;
  int etp = 0;         // expert tensor parallel; 0: same as tp
  int virtual_pp = 0;  // 0: not set
  int num_distributed_optimizer_instances = 1;
  std::vector<int> hierarchical_cp;  // empty: not set
  std::string order = "tp-cp-ep-dp-pp";
};

struct RankCoordinates {
  int tp = 0, cp = 0, dp = 0, pp = 0;        // dense
  int ep = 0, expert_tp = 0, expert_dp = 0;  // expert
};

using GroupTable = std::vector<std::vector<int>>;  // every group of one kind, in Megatron's order

class RankTopology {
 public:
  // INVALID_ARGUMENT with the rule and the values for every check of reference 1.2.
  static absl::StatusOr<RankTopology> Create(const TopologySpec& spec);

  int world_size() const;
  int tp() const;
  int cp() const;
  int pp() const;
  int dp() const;
  int ep() const;
  int etp() const;
  int edp() const;
  RankCoordinates Coordinates(int rank) const;
  // Inverse of Coordinates over the dense axes.
  int Rank(const RankCoordinates& where) const;

  // Names of design 8: tp cp dp pp dp_cp tp_cp tp_pp tp_dp tp_dp_cp ep expert_tp expert_dp tp_ep
  // tp_ep_pp embedding position_embedding; and intra_dp_cp intra_expert_dp inter_expert_dp
  // intra_dist_opt (reference 1.3), hcp_0.. when set.
  const std::map<std::string, GroupTable>& groups() const;
  // The members of `rank`'s group of that name; empty when it is in none (embedding on a middle
  // stage).
  std::vector<int> GroupOf(const std::string& name, int rank) const;

  // Hybrid context parallelism: contiguous slices of every dp_cp group, by slice size 2^k, for
  // k = 1 .. floor(log2(dp * cp)) - 1. INVALID_ARGUMENT when dp * cp is odd and above 1.
  absl::StatusOr<std::map<int, GroupTable>> HybridDpCpGroups() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace muster
