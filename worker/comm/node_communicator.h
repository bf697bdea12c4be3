// The world of CPU ranks: groups whose members are all on one node share memory, the others use
// gloo. Which ranks are on one node is found out while the world forms: those that run on the same
// kernel and network namespace and have met through their sockets. A world on one node opens no TCP
// connection at all.
//
// The first failure of any group, of either kind, is the failure of the whole world on this rank.
// Thread-safety: as in communicator.h.
#pragma once

#include <memory>
#include <string>

#include "worker/comm/communicator.h"
#include "worker/comm/gloo_communicator.h"

namespace muster {

struct NodeOptions {
  GlooOptions gloo;           // name, rank, store, limits hold for both kinds
  bool shared_memory = true;  // false: gloo for all
  // Ranks in which this differs are held to be on different nodes, also where they are not.
  std::string node;
};

// Returns at once. The first call of an operation, Split, OpenChannels or Observe blocks until the
// world has formed or failed; an Abort frees it.
absl::StatusOr<CommunicatorPtr> StartNodeWorld(const NodeOptions& options);

// Blocks until formed. Errors: those of FormGlooWorld.
absl::StatusOr<CommunicatorPtr> FormNodeWorld(const NodeOptions& options);

}  // namespace muster
