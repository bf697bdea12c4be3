// One rank's side of one group in shared memory: which of its operations can go a step further now.
// Collectives run one after the other in the order in which they were started; sends and receives
// of each member and channel are queues of their own, so that no order among them deadlocks.
// Nothing here waits: a step that finds a peer behind says whom it awaits. Torch-free.
// Thread-safety: all but the constants under the engine's mutex (shm_engine.h), which also says who
// calls Step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/op_log.h"
#include "worker/comm/shm_arena.h"
#include "worker/comm/shm_collectives.h"

namespace muster {

class ShmGroup;

struct ShmTransfer {
  bool is_send = false;
  int peer = 0, channel = 0;
  char* data = nullptr;
  int64_t bytes = 0;  // above 0
};

struct ShmOp {
  ShmGroup* group = nullptr;
  OpShape shape;
  int64_t sequence = 0;  // in the group's log
  absl::Duration deadline;
  // Of a collective: what all members must agree on.
  std::string signature;
  ShmCollectivePtr collective;
  std::vector<ShmTransfer> transfers;  // of a batch
  // Keeps the memory alive; dropped before anyone learns that the operation is done.
  std::shared_ptr<void> memory;

  int64_t number = 0;  // among the group's collectives
  int parts_left = 1;
  std::atomic<bool> done{false};
};
using ShmOpPtr = std::shared_ptr<ShmOp>;

// What one look at all groups found.
struct ShmPass {
  uint64_t gone = 0;  // ranks of the node whose process ended, as known before the look
  absl::Duration now;

  bool progress = false;
  ShmAwaited awaited;
  absl::Duration next_deadline = absl::InfiniteDuration();
  int num_done = 0;
  absl::Status failure;
};

class ShmGroup {
 public:
  // `ranks`: global, in group order; `nodes`: the members' places on the node, `arenas` their
  // memory.
  ShmGroup(std::string name, std::vector<int> ranks, int rank, std::vector<int> node_ranks,
           std::vector<std::shared_ptr<ShmArena>> arenas);

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  OpLog& log() { return log_; }
  absl::Status Named(const ShmOp& op, absl::StatusCode code, const std::string& what) const;

  absl::Status Admit(const ShmOpPtr& op);
  bool idle() const { return collectives_.empty() && pipes_.empty(); }
  // At most one step of every queue.
  void Step(ShmPass& pass);
  // Forgets what is pending.
  void Drop(const absl::Status& failure);
  // Writes down who has started what is pending here.
  void NoteArrivals();

 private:
  struct Letter {
    ShmOpPtr op;
    ShmTransfer transfer;
    int64_t moved = 0;
  };
  using PipeKey = std::tuple<bool, int, int>;  // is_send, peer, channel

  // Null while the member has no block yet.
  std::optional<ShmBlock> BlockOf(int member);
  void StepCollective(ShmPass& pass);
  bool HasRoom(const ShmOp& op, ShmPass& pass);
  bool HasData(const ShmOp& op, const ShmCollective& collective, ShmPass& pass);
  absl::Status CompareSignatures(const ShmOp& op);
  void WriteRound(ShmOp& op, const ShmStep& step);
  absl::Status ReadRound(ShmOp& op, const ShmStep& step);
  // True when a chunk moved.
  bool StepSend(Letter& letter, ShmPass& pass);
  bool StepReceive(Letter& letter, ShmPass& pass);
  // `unmet`: bits of members.
  void Blocked(const ShmOp& op, uint64_t unmet, bool for_room, ShmPass& pass);
  void PartDone(const ShmOpPtr& op, ShmPass& pass);
  void RingAll(bool for_room);

  const std::string name_;
  const std::vector<int> ranks_, node_ranks_;
  const int rank_;
  const uint64_t key_;
  const std::vector<std::shared_ptr<ShmArena>> arenas_;
  OpLog log_;

  std::vector<std::optional<ShmBlock>> blocks_;
  std::deque<ShmOpPtr> collectives_;
  int64_t num_collectives_ = 0;
  uint64_t num_written_ = 0, num_read_ = 0;  // rounds
  bool at_first_write_ = true, at_first_read_ = true;
  std::map<PipeKey, std::deque<Letter>> pipes_;  // none is empty
};

}  // namespace muster
