// Process groups between processes on CPU: libtorch's gloo, with an abort that it lacks.
//
// - Splitting costs nothing until the group's first operation, which forms it in the background;
//   equal groups share one; groups of one member are no-ops.
// - Each group costs the store one Set and one WaitPrefix a rank. Several groups may form at the
//   same time, so the store's calls must be able to overlap.
// - The first failure of any group (an abort, a dead peer, a limit) is the failure of the whole
//   world on this rank: every waiter is freed at once. Nobody waits inside gloo.
// - After a failure, tensors of operations that were pending may still be read and written until
//   NumLingeringGlooGroups() is 0: form the next epoch at once, with fresh buffers.
// - Sums: all-reduce adds in the ring's order, which depends on the number of members and elements
//   only; reduce-scatter in rank order.
// - Members must agree on operations and sizes. Gloo does not compare them: a mismatch ends a
// process,
//   hangs until the limit, or passes unseen. With check_collectives it is an INVALID_ARGUMENT.
// Thread-safety: as in communicator.h. FormGlooWorld ignores SIGPIPE for the whole process, since
// gloo writes to sockets whose peer may be gone.
#pragma once

#include <memory>
#include <string>

#include "worker/comm/abort_state.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rendezvous_store.h"

namespace muster {

struct GlooOptions {
  std::string name = "world";
  int rank = 0;
  int size = 1;
  // Numbers the attempt; the store's keys must already be apart from those of other epochs.
  int64_t epoch = 0;
  // Used from background threads, also shortly after the last communicator is gone.
  std::shared_ptr<RendezvousStore> store;
  // A numeric address of this machine, bound and told to the peers. Any 127.x.y.z: on loopback each
  // group binds an address of its own.
  std::string host = "127.0.0.1";
  absl::Duration form_limit = absl::Minutes(1);
  absl::Duration operation_limit = absl::Minutes(10);
  // Compares every collective's name, type and sizes among the members first (an all-gather of some
  // 100 bytes each): to find a bug in a parallel layout.
  bool check_collectives = false;
  // Shared with the other groups of the same world, where it has some that are not gloo's: they
  // fail together. Null: its own.
  std::shared_ptr<AbortState> state;
};

// Blocks until all members are connected. Errors: INVALID_ARGUMENT for options; UNAVAILABLE for the
// address or a peer that went away; the store's errors; DEADLINE_EXCEEDED after form_limit.
absl::StatusOr<CommunicatorPtr> FormGlooWorld(const GlooOptions& options);

// The same, but returns at once: operations wait for the forming. Its Abort frees a forming group.
absl::StatusOr<CommunicatorPtr> StartGlooWorld(const GlooOptions& options);

// Background threads that still form or free a group.
int NumLingeringGlooGroups();

}  // namespace muster
