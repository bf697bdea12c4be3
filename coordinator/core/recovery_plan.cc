#include "coordinator/core/recovery_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/recovery/elastic_size.h"
#include "common/schedule/from_spec.h"
#include "common/topology/placement.h"
#include "common/topology/rank_topology.h"

namespace muster {
namespace {

using State = RecoveryRank::State;

constexpr int kNone = -1;
constexpr size_t kMaxChangesNamed = 4;

RankTopology TopologyWith(const JobSpec& spec, int world_size) {
  TopologySpec sized = TopologyOf(spec);
  sized.world_size = world_size;
  auto topology = RankTopology::Create(sized);
  MUSTER_CHECK(topology.ok());  // LargestDataParallelSize has asked for it
  return *std::move(topology);
}

// Where a rank stands inside its replica.
int PositionOf(const RankTopology& topology, const RankCoordinates& at) {
  return at.tp + topology.tp() * (at.cp + topology.cp() * at.pp);
}

class Planner {
 public:
  explicit Planner(const RecoveryInput& input) : in_(input) {
    by_node_ = [](const RecoveryWorker* a, const RecoveryWorker* b) {
      if (a->node != b->node) return NaturalLess(a->node, b->node);
      return std::pair(a->device_index, a->name) < std::pair(b->device_index, b->name);
    };
    for (const RecoveryWorker& worker : in_.spares) spares_.push_back(&worker);
    for (const RecoveryWorker& worker : in_.idle) idle_.push_back(&worker);
    std::sort(spares_.begin(), spares_.end(), by_node_);
    std::sort(idle_.begin(), idle_.end(), by_node_);
  }

  RecoveryPlan Plan() {
    RecoveryPlan plan;
    if (AwaitsExits(&plan)) return plan;
    const int64_t of_replica = RanksOfReplica(*in_.spec);
    const int64_t wanted = in_.spec->resources.world_size / of_replica;
    const int64_t available = NumAvailable();
    int64_t dp = std::min(wanted, available / of_replica);
    if (dp < wanted) dp = in_.spec->recovery.elastic ? LargestDataParallelSize(*in_.spec, dp) : 0;
    if (dp <= 0) {
      const int64_t needed =
          in_.spec->recovery.elastic ? of_replica : in_.spec->resources.world_size;
      plan.kind = RecoveryPlan::Kind::kWaitForWorkers;
      plan.reason = absl::StrCat("needs ", needed, " ", in_.spec->resources.device,
                                 " workers and has ", available, ": waits for ",
                                 std::max<int64_t>(1, needed - available), " more");
      return plan;
    }
    plan.data_parallel_size = dp;
    Place(dp, &plan);
    Describe(&plan);
    return plan;
  }

 private:
  struct Seat {
    int former = kNone;  // rank whose place in its replica this is; none in a replica that is new
    int replica = 0, position = 0;
  };

  bool AwaitsExits(RecoveryPlan* plan) const {
    std::vector<int> ending;
    for (size_t r = 0; r < in_.ranks.size(); ++r) {
      if (in_.ranks[r].state == State::kEnding) ending.push_back(static_cast<int>(r));
    }
    if (ending.empty()) return false;
    plan->kind = RecoveryPlan::Kind::kAwaitExits;
    plan->reason = absl::StrCat("waits for the end of the trainer", ending.size() > 1 ? "s" : "",
                                " of rank", ending.size() > 1 ? "s " : " ", CompressRanks(ending));
    return true;
  }

  int64_t NumAvailable() const {
    const auto usable = std::count_if(in_.ranks.begin(), in_.ranks.end(), [](const auto& rank) {
      return rank.state == State::kAlive || rank.state == State::kVacant;
    });
    return usable + static_cast<int64_t>(spares_.size() + idle_.size());
  }

  // The former replica that each new one continues: those that lost the least, in their order;
  // none for those that are new.
  std::vector<int> FormerReplicas(const RankTopology& before, int64_t dp) const {
    std::vector<int> lost(before.dp(), 0), order;
    for (size_t r = 0; r < in_.ranks.size(); ++r) {
      const bool alive = in_.ranks[r].state == State::kAlive;
      lost[before.Coordinates(static_cast<int>(r)).dp] += alive ? 0 : 1;
    }
    for (int replica = 0; replica < before.dp(); ++replica) order.push_back(replica);
    if (dp < before.dp()) {
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lost[a] < lost[b]; });
      order.resize(dp);
      std::sort(order.begin(), order.end());
    }
    order.resize(dp, kNone);
    return order;
  }

  void Place(int64_t dp, RecoveryPlan* plan) {
    const int world = static_cast<int>(dp * RanksOfReplica(*in_.spec));
    const RankTopology before = TopologyWith(*in_.spec, static_cast<int>(in_.ranks.size()));
    const RankTopology after = TopologyWith(*in_.spec, world);
    std::map<std::pair<int, int>, int> former_rank;  // replica, position
    for (int r = 0; r < before.world_size(); ++r) {
      const RankCoordinates at = before.Coordinates(r);
      former_rank[{at.dp, PositionOf(before, at)}] = r;
      position_of_.push_back(PositionOf(before, at));
    }
    const std::vector<int> former = FormerReplicas(before, dp);
    plan->ranks.resize(world);
    seats_.resize(world);
    for (int r = 0; r < world; ++r) {
      const RankCoordinates at = after.Coordinates(r);
      seats_[r] = {.replica = at.dp, .position = PositionOf(after, at)};
      if (former[at.dp] == kNone) continue;
      seats_[r].former = former_rank.at({former[at.dp], seats_[r].position});
    }
    used_.assign(in_.ranks.size(), false);
    const auto own = [&](const Seat& place, State state, bool suspect) {
      if (place.former == kNone) return kNone;
      const RecoveryRank& rank = in_.ranks[place.former];
      const bool fits = rank.state == state && (suspect || !rank.suspect);
      return fits && !used_[place.former] ? place.former : kNone;
    };
    const auto any = [&](State state, int position) {
      for (int r = 0; r < static_cast<int>(in_.ranks.size()); ++r) {
        const bool fits = position == kNone || position_of_[r] == position;
        if (fits && !used_[r] && in_.ranks[r].state == state) return r;
      }
      return kNone;
    };
    using Finder = std::function<int(const Seat&)>;
    const auto from_ranks = [&](RankSource source, const Finder& find) {
      for (int r = 0; r < world; ++r) {
        if (!plan->ranks[r].worker.empty()) continue;
        const int found = find(seats_[r]);
        if (found == kNone) continue;
        used_[found] = true;
        const bool alive = in_.ranks[found].state == State::kAlive;
        plan->ranks[r] = {in_.ranks[found].worker.name, source, alive ? found : kNone};
      }
    };
    // In the order of preference.
    from_ranks(RankSource::kSurvivor, [&](const Seat& p) { return own(p, State::kAlive, true); });
    from_ranks(RankSource::kInPlace, [&](const Seat& p) { return own(p, State::kVacant, false); });
    from_ranks(RankSource::kMoved, [&](const Seat& p) { return any(State::kAlive, p.position); });
    FromWorkers(RankSource::kSpare, &spares_, plan);
    FromWorkers(RankSource::kIdle, &idle_, plan);
    from_ranks(RankSource::kInPlace, [&](const Seat& p) { return own(p, State::kVacant, true); });
    from_ranks(RankSource::kMoved, [&](const Seat&) { return any(State::kAlive, kNone); });
    from_ranks(RankSource::kIdle, [&](const Seat&) { return any(State::kVacant, kNone); });
    for (const auto& rank : plan->ranks) MUSTER_CHECK(!rank.worker.empty());
    for (const RecoveryWorker* spare : spares_) plan->spares.push_back(spare->name);
    for (size_t r = 0; r < in_.ranks.size(); ++r) {
      const bool there =
          in_.ranks[r].state == State::kAlive || in_.ranks[r].state == State::kVacant;
      if (there && !used_[r]) plan->spares.push_back(in_.ranks[r].worker.name);
    }
  }

  // Takes what it uses out of the list: the rank's former worker (it was given back), else one of
  // the same node, else the first that nobody else wants so.
  void FromWorkers(RankSource source, std::vector<const RecoveryWorker*>* free,
                   RecoveryPlan* plan) {
    enum class Match { kWorker, kNode, kAny };
    for (const Match match : {Match::kWorker, Match::kNode, Match::kAny}) {
      for (size_t r = 0; r < plan->ranks.size() && !free->empty(); ++r) {
        if (!plan->ranks[r].worker.empty()) continue;
        const int former = seats_[r].former;
        if (match != Match::kAny && former == kNone) continue;
        const auto chosen =
            std::find_if(free->begin(), free->end(), [&](const RecoveryWorker* worker) {
              if (match == Match::kAny) return true;
              const RecoveryWorker& before = in_.ranks[former].worker;
              return match == Match::kWorker ? worker->name == before.name
                                             : worker->node == before.node;
            });
        if (chosen == free->end()) continue;
        const bool back = match == Match::kWorker;
        plan->ranks[r] = {(*chosen)->name, back ? RankSource::kInPlace : source, kNone};
        free->erase(chosen);
      }
    }
  }

  void Describe(RecoveryPlan* plan) const {
    std::vector<std::string> parts;
    size_t changes = 0;
    bool spare = false, in_place = false;
    for (size_t r = 0; r < plan->ranks.size(); ++r) {
      const RecoveryPlan::Rank& rank = plan->ranks[r];
      if (rank.source == RankSource::kSurvivor) continue;
      spare = spare || rank.source == RankSource::kSpare || rank.source == RankSource::kIdle;
      in_place = in_place || rank.source == RankSource::kInPlace;
      if (++changes > kMaxChangesNamed) continue;
      const char* how = rank.source == RankSource::kInPlace ? " in place on "
                        : rank.source == RankSource::kSpare ? " on spare "
                        : rank.source == RankSource::kIdle  ? " on idle worker "
                                                            : " moves to ";
      parts.push_back(absl::StrCat("rank ", r, how, rank.worker));
    }
    if (changes > kMaxChangesNamed) {
      parts.push_back(absl::StrCat("and ", changes - kMaxChangesNamed, " more"));
    }
    const size_t before = in_.ranks.size(), after = plan->ranks.size();
    plan->change = after < before   ? "shrink"
                   : after > before ? "grow"
                   : spare          ? "spare"
                   : in_place       ? "in_place"
                                    : "reform";
    if (after != before) {
      parts.insert(parts.begin(), absl::StrCat(before, " -> ", after, " ranks, data parallel size ",
                                               plan->data_parallel_size));
    }
    plan->reason = parts.empty() ? "all trainers live" : absl::StrJoin(parts, ", ");
  }

  const RecoveryInput& in_;
  std::function<bool(const RecoveryWorker*, const RecoveryWorker*)> by_node_;
  std::vector<const RecoveryWorker*> spares_, idle_;  // not used yet
  std::vector<int> position_of_;                      // of a former rank in its replica
  std::vector<Seat> seats_;                           // by new rank
  std::vector<bool> used_;                            // by former rank
};

}  // namespace

const char* RankSourceName(RankSource source) {
  switch (source) {
    case RankSource::kSurvivor:
      return "survivor";
    case RankSource::kInPlace:
      return "in_place";
    case RankSource::kSpare:
      return "spare";
    case RankSource::kIdle:
      return "idle";
    case RankSource::kMoved:
      return "moved";
  }
  return "?";
}

RecoveryPlan PlanRecovery(const RecoveryInput& input) { return Planner(input).Plan(); }

}  // namespace muster
