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
    const Members& members = context.members_
                                 .emplace(name, Members{.ranks = topology.GroupOf(name, rank),
                                                        .is_split = AnyHasPeers(table)})
                                 .first->second;
    ASSIGN_OR_RETURN(CommunicatorPtr group, context.MakeGroup(name, members, *world));
    if (group != nullptr) {
      context.groups_[name] =
          std::make_shared<RebindableCommunicator>(std::move(group), context.progress_);
    }
  }
  context.world_ = std::make_shared<RebindableCommunicator>(std::move(world), context.progress_);
  return context;
}

absl::StatusOr<CommunicatorPtr> ParallelContext::MakeGroup(const std::string& name,
                                                           const Members& members,
                                                           Communicator& world) const {
  CommunicatorPtr group;
  if (members.is_split) {
    ASSIGN_OR_RETURN(group, world.Split(name, members.ranks));
  }
  if (members.ranks.size() == 1) group = MakeSelfCommunicator(name, rank_);
  return group;
}

absl::Status ParallelContext::Rebind(CommunicatorPtr world) {
  if (world->ranks() != world_->ranks() || world->rank() != rank_) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " of ", world_->size(),
                                                   " cannot go on as rank ", world->rank(), " of ",
                                                   world->size()));
  }
  progress_->Forget();
  for (const auto& [name, members] : members_) {
    ASSIGN_OR_RETURN(CommunicatorPtr group, MakeGroup(name, members, *world));
    if (group != nullptr) groups_.at(name)->Bind(std::move(group));
  }
  world_->Bind(std::move(world));
  return absl::OkStatus();
}

ParallelContext ParallelContext::SingleProcess() {
  ParallelContext context;
  const auto alone = [&context](const std::string& name) {
    return std::make_shared<RebindableCommunicator>(MakeSelfCommunicator(name, 0),
                                                    context.progress_);
  };
  context.world_ = alone("world");
  absl::StatusOr<RankTopology> topology = RankTopology::Create({});
  MUSTER_CHECK(topology.ok());
  for (const auto& [name, table] : topology->groups()) {
    context.members_[name] = {.ranks = {0}};
    context.groups_[name] = alone(name);
  }
  return context;
}

Communicator& ParallelContext::Group(const std::string& name) const {
  const auto found = groups_.find(name);
  MUSTER_CHECK_MSG(found != groups_.end(),
                   absl::StrCat("rank ", rank_, " is in no group named ", name));
  return *found->second;
}

}  // namespace muster
