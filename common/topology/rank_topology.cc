#include "common/topology/rank_topology.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"

// rank = sum over axes of index[axis] * stride[axis], where stride[axis] is the product of the
// sizes of the axes left of it in the order string (reference 1.1; Megatron's RankGenerator). Two
// grids lie over the same world: the dense one (tp, cp, dp, pp) and the expert one (expert tp, ep,
// expert dp, pp).

namespace muster {
namespace {

enum Axis { kTp, kCp, kEp, kDp, kPp, kNumAxes };
constexpr std::array<const char*, kNumAxes> kAxisNames = {"tp", "cp", "ep", "dp", "pp"};

struct Grid {
  std::vector<Axis> order;  // leftmost varies fastest; every axis is in it once
  std::array<int64_t, kNumAxes> size{};
  std::array<int64_t, kNumAxes> stride{};

  int Index(int rank, Axis axis) const {
    return static_cast<int>(rank / stride[axis] % size[axis]);
  }
};

absl::StatusOr<Grid> MakeGrid(const char* which, const std::string& order_text,
                              const std::array<int64_t, kNumAxes>& size) {
  Grid grid;
  grid.size = size;
  std::array<bool, kNumAxes> seen{};
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(absl::AsciiStrToLower(order_text), '-'))) {
    auto it = std::find(kAxisNames.begin(), kAxisNames.end(), name);
    if (it == kAxisNames.end()) {
      return absl::InvalidArgumentError(absl::StrCat("parallel.order=\"", order_text, "\": \"",
                                                     name, "\" is not an axis; the axes are ",
                                                     absl::StrJoin(kAxisNames, ", ")));
    }
    const Axis axis = static_cast<Axis>(it - kAxisNames.begin());
    if (seen[axis]) {
      return absl::InvalidArgumentError(
          absl::StrCat("parallel.order=\"", order_text, "\" names ", name, " twice"));
    }
    seen[axis] = true;
    grid.order.push_back(axis);
  }
  for (int axis = 0; axis < kNumAxes; ++axis) {
    if (seen[axis]) continue;
    if (size[axis] != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parallel.order=\"", order_text, "\" leaves out ", kAxisNames[axis], ", whose ", which,
          " size is ", size[axis], "; only an axis of size 1 may be left out"));
    }
    grid.order.push_back(static_cast<Axis>(axis));
  }
  int64_t stride = 1;
  for (Axis axis : grid.order) {
    grid.stride[axis] = stride;
    stride *= size[axis];
  }
  return grid;
}

// Offsets of all index tuples over the axes that `take` chooses, leftmost fastest.
template <class Take>
std::vector<int> Offsets(const Grid& grid, Take take) {
  std::vector<int> offsets = {0};
  for (Axis axis : grid.order) {
    if (!take(axis)) continue;
    const size_t inner = offsets.size();
    offsets.reserve(inner * grid.size[axis]);
    for (int64_t i = 1; i < grid.size[axis]; ++i) {
      for (size_t j = 0; j < inner; ++j) {
        offsets.push_back(static_cast<int>(offsets[j] + i * grid.stride[axis]));
      }
    }
  }
  return offsets;
}

// One group for each index tuple over the axes not in `masked`; the masked axes vary inside.
GroupTable Groups(const Grid& grid, std::initializer_list<Axis> masked) {
  auto is_masked = [&](Axis axis) {
    return std::find(masked.begin(), masked.end(), axis) != masked.end();
  };
  const std::vector<int> inside = Offsets(grid, is_masked);
  GroupTable table;
  for (int base : Offsets(grid, [&](Axis axis) { return !is_masked(axis); })) {
    std::vector<int>& group = table.emplace_back(inside);
    for (int& rank : group) rank += base;
  }
  return table;
}

// Each group seen as (outer, size, inner): one subgroup for each (outer, inner).
GroupTable HierarchyLevel(const GroupTable& groups, int size, int inner) {
  GroupTable table;
  for (const std::vector<int>& group : groups) {
    const int num_members = static_cast<int>(group.size());
    for (int outer = 0; outer < num_members; outer += size * inner) {
      for (int i = 0; i < inner; ++i) {
        std::vector<int>& members = table.emplace_back();
        for (int k = 0; k < size; ++k) members.push_back(group[outer + k * inner + i]);
      }
    }
  }
  return table;
}

absl::Status CheckPositive(const char* field, int value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, "=", value, " must be at least 1"));
}

}  // namespace

struct RankTopology::State {
  TopologySpec spec;
  Grid dense, expert;
  std::map<std::string, GroupTable> groups;
  std::map<std::string, std::vector<int>> group_of_rank;  // index into the table, -1: in none
};

absl::StatusOr<RankTopology> RankTopology::Create(const TopologySpec& given) {
  auto state = std::make_shared<State>();
  TopologySpec& spec = state->spec;
  spec = given;
  if (spec.etp == 0) spec.etp = spec.tp;
  RETURN_IF_ERROR(CheckPositive("resources.world_size", spec.world_size));
  RETURN_IF_ERROR(CheckPositive("parallel.tensor_model_parallel_size", spec.tp));
  RETURN_IF_ERROR(CheckPositive("parallel.context_parallel_size", spec.cp));
  RETURN_IF_ERROR(CheckPositive("parallel.pipeline_model_parallel_size", spec.pp));
  RETURN_IF_ERROR(CheckPositive("parallel.expert_model_parallel_size", spec.ep));
  RETURN_IF_ERROR(CheckPositive("parallel.expert_tensor_parallel_size", spec.etp));
  const int n = spec.num_distributed_optimizer_instances;
  RETURN_IF_ERROR(CheckPositive("parallel.num_distributed_optimizer_instances", n));

  const int64_t world = spec.world_size;
  const int64_t dense_model = int64_t{spec.tp} * spec.pp * spec.cp;
  if (world % dense_model != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.world_size=", world, " must be a multiple of tensor_model_parallel_size=",
        spec.tp, " x pipeline_model_parallel_size=", spec.pp, " x context_parallel_size=", spec.cp,
        " = ", dense_model));
  }
  const int64_t expert_model = int64_t{spec.etp} * spec.ep * spec.pp;
  if (world % expert_model != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "resources.world_size=", world, " must be a multiple of expert_tensor_parallel_size=",
        spec.etp, " x expert_model_parallel_size=", spec.ep,
        " x pipeline_model_parallel_size=", spec.pp, " = ", expert_model));
  }
  if (spec.virtual_pp != 0 && spec.pp <= 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.virtual_pipeline_model_parallel_size=", spec.virtual_pp,
                     " needs pipeline_model_parallel_size above 1, not ", spec.pp));
  }

  const int64_t dp = world / dense_model, edp = world / expert_model;
  ASSIGN_OR_RETURN(state->dense, MakeGrid("dense", spec.order, {spec.tp, spec.cp, 1, dp, spec.pp}));
  ASSIGN_OR_RETURN(state->expert,
                   MakeGrid("expert", spec.order, {spec.etp, 1, spec.ep, edp, spec.pp}));
  // The test for the end is on the order as written: an upper-case one counts as not ending in pp.
  if (!absl::EndsWith(spec.order, "pp") && spec.pp > 1 && edp != dp) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.order=\"", spec.order,
                                                   "\" does not end in pp: with "
                                                   "pipeline_model_parallel_size=",
                                                   spec.pp, " the expert data parallel size ", edp,
                                                   " must then equal the data parallel size ", dp));
  }
  const Grid& dense = state->dense;
  const Grid& expert = state->expert;
  auto& groups = state->groups;
  groups["pp"] = Groups(dense, {kPp});
  if (groups["pp"] != Groups(expert, {kPp})) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.order=\"", spec.order,
                     "\" gives dense and expert layers different pipeline "
                     "groups (tp=",
                     spec.tp, ", cp=", spec.cp, ", dp=", dp, ", expert tp=", spec.etp,
                     ", ep=", spec.ep, ", expert dp=", edp, "); use an order that ends in pp"));
  }
  if (dp * spec.cp % n != 0 || edp % n != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.num_distributed_optimizer_instances=", n,
                     " must divide data parallel size x context_parallel_size=", dp * spec.cp,
                     " and the expert data parallel size ", edp));
  }
  int64_t hierarchy = 1;
  for (int size : spec.hierarchical_cp) {
    RETURN_IF_ERROR(CheckPositive("parallel.hierarchical_context_parallel_sizes", size));
    if (hierarchy <= spec.cp) hierarchy *= size;
  }
  if (!spec.hierarchical_cp.empty() && hierarchy != spec.cp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.hierarchical_context_parallel_sizes=", absl::StrJoin(spec.hierarchical_cp, ","),
        " must have the product context_parallel_size=", spec.cp, ", not ", hierarchy));
  }

  groups["tp"] = Groups(dense, {kTp});
  groups["cp"] = Groups(dense, {kCp});
  groups["dp"] = Groups(dense, {kDp});
  groups["dp_cp"] = Groups(dense, {kDp, kCp});
  groups["tp_cp"] = Groups(dense, {kTp, kCp});
  groups["tp_pp"] = Groups(dense, {kTp, kPp});
  groups["tp_dp"] = Groups(dense, {kTp, kDp});
  groups["tp_dp_cp"] = Groups(dense, {kTp, kDp, kCp});
  groups["ep"] = Groups(expert, {kEp});
  groups["expert_tp"] = Groups(expert, {kTp});
  groups["expert_dp"] = Groups(expert, {kDp});
  groups["tp_ep"] = Groups(expert, {kTp, kEp});
  groups["tp_ep_pp"] = Groups(expert, {kTp, kEp, kPp});
  for (const std::vector<int>& stages : groups["pp"]) {
    groups["position_embedding"].push_back({stages.front()});
    groups["embedding"].push_back(stages.size() == 1
                                      ? std::vector<int>{stages.front()}
                                      : std::vector<int>{stages.front(), stages.back()});
  }
  // Several optimizer instances: each holds 1/n of the replicas, and its own full set of shards.
  groups["intra_dp_cp"] = HierarchyLevel(groups["dp_cp"], static_cast<int>(dp * spec.cp / n), 1);
  const int instance = static_cast<int>(edp / n);
  groups["intra_expert_dp"] = HierarchyLevel(groups["expert_dp"], instance, 1);
  groups["inter_expert_dp"] = HierarchyLevel(groups["expert_dp"], n, instance);
  GroupTable& dist_opt = groups["intra_dist_opt"];
  const GroupTable& model_groups = groups["tp_ep_pp"];
  for (size_t i = 0; i < model_groups.size(); ++i) {
    if (i % instance == 0) dist_opt.emplace_back();
    dist_opt.back().insert(dist_opt.back().end(), model_groups[i].begin(), model_groups[i].end());
  }
  int inner = 1;
  for (size_t level = 0; level < spec.hierarchical_cp.size(); ++level) {
    const int size = spec.hierarchical_cp[level];
    groups[absl::StrCat("hcp_", level)] = HierarchyLevel(groups["cp"], size, inner);
    inner *= size;
  }

  for (const auto& [name, table] : groups) {
    std::vector<int>& index = state->group_of_rank[name];
    index.assign(spec.world_size, -1);
    for (size_t i = 0; i < table.size(); ++i) {
      for (int rank : table[i]) index[rank] = static_cast<int>(i);
    }
  }
  RankTopology topology;
  topology.state_ = std::move(state);
  return topology;
}

int RankTopology::world_size() const { return state_->spec.world_size; }
int RankTopology::tp() const { return state_->spec.tp; }
int RankTopology::cp() const { return state_->spec.cp; }
int RankTopology::pp() const { return state_->spec.pp; }
int RankTopology::dp() const { return static_cast<int>(state_->dense.size[kDp]); }
int RankTopology::ep() const { return state_->spec.ep; }
int RankTopology::etp() const { return state_->spec.etp; }
int RankTopology::edp() const { return static_cast<int>(state_->expert.size[kDp]); }

RankCoordinates RankTopology::Coordinates(int rank) const {
  MUSTER_CHECK(rank >= 0 && rank < world_size());
  const Grid& dense = state_->dense;
  const Grid& expert = state_->expert;
  return {.tp = dense.Index(rank, kTp),
          .cp = dense.Index(rank, kCp),
          .dp = dense.Index(rank, kDp),
          .pp = dense.Index(rank, kPp),
          .ep = expert.Index(rank, kEp),
          .expert_tp = expert.Index(rank, kTp),
          .expert_dp = expert.Index(rank, kDp)};
}

int RankTopology::Rank(const RankCoordinates& where) const {
  const Grid& dense = state_->dense;
  const std::pair<Axis, int> indices[] = {
      {kTp, where.tp}, {kCp, where.cp}, {kDp, where.dp}, {kPp, where.pp}};
  int64_t rank = 0;
  for (const auto& [axis, index] : indices) {
    MUSTER_CHECK(index >= 0 && index < dense.size[axis]);
    rank += index * dense.stride[axis];
  }
  return static_cast<int>(rank);
}

const std::map<std::string, GroupTable>& RankTopology::groups() const { return state_->groups; }

std::vector<int> RankTopology::GroupOf(const std::string& name, int rank) const {
  auto it = state_->group_of_rank.find(name);
  MUSTER_CHECK_MSG(it != state_->group_of_rank.end(), absl::StrCat("no group is named ", name));
  MUSTER_CHECK(rank >= 0 && rank < world_size());
  const int index = it->second[rank];
  if (index < 0) return {};
  return state_->groups.at(name)[index];
}

absl::StatusOr<std::map<int, GroupTable>> RankTopology::HybridDpCpGroups() const {
  const int size = dp() * cp();
  if (size % 2 != 0 && size != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("hybrid context parallelism needs an even data parallel size x "
                     "context_parallel_size, not ",
                     dp(), " x ", cp(), " = ", size));
  }
  std::map<int, GroupTable> by_size;
  for (int slice = 2; 2 * slice <= size; slice *= 2) {  // slice <= 2^(floor(log2 size) - 1)
    GroupTable& table = by_size[slice];
    for (const std::vector<int>& group : state_->groups.at("dp_cp")) {
      for (int begin = 0; begin < size; begin += slice) {
        table.emplace_back(group.begin() + begin, group.begin() + std::min(begin + slice, size));
      }
    }
  }
  return by_size;
}

}  // namespace muster
