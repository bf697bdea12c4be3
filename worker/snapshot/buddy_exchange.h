// Copies of snapshots to other nodes: each rank sends its new generation to its buddy and keeps
// those of the ranks whose buddy it is. Every rank of the group takes part once a try, in the order
// of the tries, with or without a snapshot. Bounded messages. One thread, which is the only one
// that uses the group; Abort of the group frees it.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/snapshot/copy_pace.h"
#include "worker/snapshot/snapshot_memory.h"

namespace muster {

class BuddyExchange {
 public:
  // `group`: all ranks, in reverse order. `buddies[r]`: who keeps the copy of rank r; -1: nobody.
  // `memory` may be null: then this rank keeps nothing.
  BuddyExchange(CommunicatorPtr group, c10::Device device, std::vector<int> buddies,
                SnapshotMemory* memory, CopyPace& pace);

  bool needed() const { return buddy_ >= 0 || !sources_.empty(); }

  // `mine`: the slot that holds this rank's generation; nullopt: it has none. OK: the buddy was
  // sent all of it, and every copy that this rank was to keep is complete. UNAVAILABLE: a source
  // had no snapshot. RESOURCE_EXHAUSTED: no room for a copy. DATA_LOSS: damaged on its way. After
  // those the next exchange may go well; after the group's errors none will.
  absl::Status Exchange(std::optional<SnapshotSlot> mine);

  // Slots (of sources) that the newest exchange has filled.
  const std::set<SnapshotSlot>& kept() const { return kept_; }
  bool broken() const { return broken_; }

 private:
  struct Incoming;

  // A rank's index in the group, and back. Equal groups may share one communicator, where messages
  // of the copying thread would meet those of a pipeline's; no group of training is in this order.
  int MirrorOf(int rank) const { return group_->size() - 1 - rank; }
  absl::Status ExchangeHeads(std::vector<Incoming>& incoming, const at::Tensor& my_head);
  absl::Status ExchangeChunks(std::vector<Incoming>& incoming, absl::string_view outgoing);
  at::Tensor Room(std::vector<at::Tensor>& rooms, size_t index, int64_t bytes);

  const CommunicatorPtr group_;
  const c10::Device device_;
  const int buddy_;
  const std::vector<int> sources_;
  SnapshotMemory* const memory_;
  CopyPace& pace_;
  std::set<SnapshotSlot> kept_;
  bool broken_ = false;
  std::vector<at::Tensor> rooms_;  // buffers, kept from exchange to exchange
};

}  // namespace muster
