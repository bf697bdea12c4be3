#include "worker/parallel/parallel_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/comm/self_communicator.h"

namespace muster {
namespace {

bool AnyHasPeers(const GroupTable& table) {
  return std::any_of(table.begin(), table.end(),
                     [](const auto& group) { return group.size() > 1; });
}

}  // namespace

absl::StatusOr<ParallelContext> ParallelContext::Create(const RankTopology& topology, int rank,
                                                        CommunicatorPtr world) {
  if (world->size() != topology.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("the world communicator has ", world->size(),
                                                   " members, the topology ", topology.world_size(),
                                                   " ranks: they must be equal"));
  }
  if (world->rank() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " was given a communicator of rank ", world->rank()));
  }
  ParallelContext context;
  context.rank_ = rank;
  context.coordinates_ = topology.Coordinates(rank);
  // The map's order is the same on every rank, and so is the choice of names that are split at all:
  // it looks at the whole table, not at this rank's group.
  for (const auto& [name, table] : topology.groups()) {
    const std::vector<int> members = topology.GroupOf(name, rank);
    CommunicatorPtr group;
    if (AnyHasPeers(table)) {
      ASSIGN_OR_RETURN(group, world->Split(name, members));
    }
    if (members.size() == 1) group = MakeSelfCommunicator(name, rank);
    if (!members.empty()) context.groups_[name] = std::move(group);
  }
  context.world_ = std::move(world);
  return context;
}

ParallelContext ParallelContext::SingleProcess() {
  ParallelContext context;
  context.world_ = MakeSelfCommunicator("world", 0);
  absl::StatusOr<RankTopology> topology = RankTopology::Create({});
  MUSTER_CHECK(topology.ok());
  for (const auto& [name, table] : topology->groups())
    context.groups_[name] = MakeSelfCommunicator(name, 0);
  return context;
}

Communicator& ParallelContext::Group(const std::string& name) const {
  const auto found = groups_.find(name);
  MUSTER_CHECK_MSG(found != groups_.end(),
                   absl::StrCat("rank ", rank_, " is in no group named ", name));
  return *found->second;
}

}  // namespace muster
