// The core of the threads backend: who has arrived, who waits, who is freed. It knows no tensors:
// an operation brings opaque parts, and a function combines them once all are there. Torch-free, so
// that ThreadSanitizer can check it.
//
// Nobody blocks in Post*; Wait blocks. The last member to arrive combines, on its own thread and
// without a lock, then marks the operation done for all. Parts live until then, so an abort frees
// no memory that a slow peer still reads.
// With blocking_sends a rank's operations of a group (and channel) run strictly one after the
// other, and a send is done only when its receive is there, as on an NCCL stream: a schedule that
// deadlocks on NCCL does so here too (and ends by the limit). Thread-safe; a rank's operations of
// one group come from one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/abort_state.h"
#include "worker/comm/op_log.h"

namespace muster {

struct ThreadWorldOptions {
  bool blocking_sends = false;
  // From the operation's start. Its passing fails the whole world.
  absl::Duration operation_limit = absl::Minutes(1);
};

// What one member brings to one operation. Backends derive from it.
struct ThreadPart {
  virtual ~ThreadPart() = default;
};
using ThreadPartPtr = std::shared_ptr<ThreadPart>;

class ThreadGroup {
 public:
  // Gets the parts in group order.
  using Combine = std::function<absl::Status(const std::vector<ThreadPartPtr>& parts)>;
  using Move = std::function<absl::Status(ThreadPart& received, const ThreadPart& sent)>;

  struct Collective {
    OpShape shape;
    std::string signature;  // must be equal on all members: operation, type, sizes
    ThreadPartPtr part;
    Combine combine;
  };
  struct Transfer {
    bool is_send = false;
    int peer = 0;
    std::string signature;  // must be equal on both sides
    ThreadPartPtr part;     // a buffered send's own copy, where sends do not block
    int64_t bytes = 0;
  };

  // One member's operation. Opaque; kept by the work handle.
  struct Op;
  using OpPtr = std::shared_ptr<Op>;

  // `ranks`: global ranks in group order.
  ThreadGroup(std::string name, std::vector<int> ranks, std::shared_ptr<AbortState> state,
              ThreadWorldOptions options, Move move);

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  AbortState& state() { return *state_; }
  const std::shared_ptr<AbortState>& shared_state() const { return state_; }
  const ThreadWorldOptions& options() const { return options_; }

  OpPtr PostCollective(int member, Collective collective);
  // Transfers between two members match in order, channel by channel; with blocking sends each
  // channel is a stream of its own, collectives run on channel 0.
  OpPtr PostBatch(int member, std::vector<Transfer> transfers, int channel = 0);
  // Errors: the world's first failure; DEADLINE_EXCEEDED (then the world's failure) names who is
  // missing.
  absl::Status Wait(const OpPtr& op);
  bool IsDone(const OpPtr& op);
  // The member's view of its recent operations.
  std::string Describe(int member);
  void Observe(int member, OpObserver* observer) { members_[member].log->Observe(observer); }
  // Fails the world, naming the group.
  absl::Status Refuse(const absl::Status& why);

 private:
  struct Slot;  // a collective that waits for its members
  struct Mail;  // sends and receives of one direction that wait for each other
  struct Job;   // work that has become possible: done without the lock

  OpPtr Enqueue(int member, OpPtr op);
  void Pump(int member, int channel, std::deque<Job>* jobs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void Arrive(const OpPtr& op, std::deque<Job>* jobs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void ArriveTransfer(const OpPtr& op, const Transfer& transfer, std::deque<Job>* jobs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void PartDone(const OpPtr& op, std::deque<Job>* jobs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void Run(std::deque<Job> jobs);
  std::string Missing(const Op& op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool HasFailed() { return !state_->failure().ok(); }

  const std::string name_;
  const std::vector<int> ranks_;
  const std::shared_ptr<AbortState> state_;
  const ThreadWorldOptions options_;
  const Move move_;

  // All below is guarded by state_->mu.
  struct Lane {
    std::deque<OpPtr> queue;  // not yet begun (blocking sends only)
    int unfinished = 0;       // begun, not done
  };
  struct Member {
    std::unique_ptr<OpLog> log;
    std::map<int, Lane> lanes;  // by channel
    int64_t next_collective = 0;
  };
  std::vector<Member> members_;
  std::map<int64_t, std::shared_ptr<Slot>> slots_;  // by number in the group's order
  std::map<std::tuple<int, int, int>, std::shared_ptr<Mail>> mail_;  // by (from, to, channel)
};

}  // namespace muster
