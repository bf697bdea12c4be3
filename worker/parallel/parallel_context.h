// This rank's coordinates and its communicator for each group. Passed down; there are no globals.
// The communicators outlive an epoch: Rebind gives them the groups of the next one. One thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/topology/rank_topology.h"
#include "worker/comm/communicator.h"
#include "worker/comm/op_progress.h"
#include "worker/comm/rebindable_communicator.h"

namespace muster {

class ParallelContext {
 public:
  // `groups` must hold every name that `topology` gives this rank more than one member for ("tp",
  // "dp", "dp_cp", "pp", ...). Splits all of them from `world`, in the same order on every rank.
  static absl::StatusOr<ParallelContext> Create(const RankTopology& topology, int rank,
                                                CommunicatorPtr world);
  // Splits all groups anew, from a world of the same ranks, in the same order: every member calls
  // it, or Create. Whoever holds a communicator of this context goes on with it. After an error
  // some are bound anew and some are not: call it again with another world.
  absl::Status Rebind(CommunicatorPtr world);
  // World of one: every group is a no-op.
  static ParallelContext SingleProcess();

  int rank() const { return rank_; }
  const RankCoordinates& coordinates() const { return coordinates_; }
  // Never null: a group that this rank is alone in is a no-op communicator. Checks that the name is
  // known.
  Communicator& Group(const std::string& name) const;
  Communicator& world() const { return *world_; }
  // The world and every group that this rank is in.
  std::vector<Communicator*> All() const {
    std::vector<Communicator*> all = {world_.get()};
    for (const auto& [name, group] : groups_) all.push_back(group.get());
    return all;
  }
  void Abort(const std::string& reason) { world_->Abort(reason); }
  // What the world and its groups are doing on this rank.
  const std::shared_ptr<OpProgress>& progress() const { return progress_; }

 private:
  int rank_ = 0;
  RankCoordinates coordinates_;
  using Handle = std::shared_ptr<RebindableCommunicator>;
  struct Members {
    std::vector<int> ranks;  // in group order; empty: this rank is in none
    bool is_split = false;   // somebody has peers in a group of this name
  };
  // This rank's group of `members` out of `world`; null: it is in none.
  absl::StatusOr<CommunicatorPtr> MakeGroup(const std::string& name, const Members& members,
                                            Communicator& world) const;

  std::shared_ptr<OpProgress> progress_ = std::make_shared<OpProgress>();
  std::map<std::string, Members> members_;
  Handle world_;
  std::map<std::string, Handle> groups_;
};

}  // namespace muster
