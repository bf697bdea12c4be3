// This rank's coordinates and its communicator for each group. Passed down; there are no globals.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/topology/rank_topology.h"
#include "worker/comm/communicator.h"

namespace muster {

class ParallelContext {
 public:
  // `groups` must hold every name that `topology` gives this rank more than one member for ("tp",
  // "dp", "dp_cp", "pp", ...). Splits all of them from `world`, in the same order on every rank.
  static absl::StatusOr<ParallelContext> Create(const RankTopology& topology, int rank,
                                                CommunicatorPtr world);
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

 private:
  int rank_ = 0;
  RankCoordinates coordinates_;
  CommunicatorPtr world_;
  std::map<std::string, CommunicatorPtr> groups_;
};

}  // namespace muster
