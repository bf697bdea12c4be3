// What a rank sees of one process group: Megatron's collectives over any backend (gloo, NCCL,
// threads of one process).
//
// Contract, the same for every backend and checked by one conformance suite (tests/worker/comm):
// - Collectives of one group are issued in the same order by all its members; each gets a sequence
//   number.
// - Operations start at once and never block the caller; Work::Wait blocks. Tensors passed in stay
//   alive and untouched until the work is done (the work holds references). Outputs are valid after
//   Wait returned OK.
// - All tensors are dense, contiguous, on the communicator's device. Reductions add in an order
//   that does not depend on timing: the same inputs give the same bits on every rank and every run.
// - ReduceScatter's output may be the own slice of its input, whose other slices then stay as they
//   are; AllGather's input may be the own slice of its output. Else no output overlaps an input.
// - A group of one member is a no-op that copies inputs to outputs.
// - Errors: ABORTED after Abort() (with its reason); UNAVAILABLE when a peer is gone;
//   DEADLINE_EXCEEDED when the limit passed; INVALID_ARGUMENT for sizes or types that do not fit.
//   After the first error the group is dead: every later call and every pending Wait returns that
//   error. Messages name group, sequence number, operation, sizes.
// Thread-safety: one thread issues operations; Abort and Describe may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

enum class ReduceOp { kSum, kMax, kMin };

class OpObserver;  // op_log.h

// Handle of one asynchronous operation. Dropping it without Wait is allowed (the operation still
// runs).
class Work {
 public:
  virtual ~Work() = default;
  // Blocks until done, failed or aborted. May be called again: same answer. On CUDA: makes the
  // current stream wait.
  virtual absl::Status Wait() = 0;
  // True when Wait would return at once. Never blocks.
  virtual bool IsDone() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

struct P2POp {
  enum class Kind { kSend, kRecv };
  Kind kind = Kind::kSend;
  at::Tensor tensor;  // sent, or received into
  int peer = 0;       // rank inside this group
  // Operations between two ranks are matched in the order in which they are issued, channel by
  // channel: activations travel on channel 0, their gradients on channel 1, so that the two
  // directions between the same two ranks may be issued in different orders on both sides.
  int channel = 0;  // [0, kNumP2PChannels)
};
inline constexpr int kNumP2PChannels = 2;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // inside this group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;        // "world", "dp", ...; unique within an epoch
  virtual const std::vector<int>& ranks() const = 0;  // global ranks of the members, in group order

  // In place.
  virtual WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) = 0;
  // input: size() * output.numel() elements, slice r goes to member r.
  virtual WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  // output: size() * input.numel() elements, in group order.
  virtual WorkPtr AllGather(at::Tensor output, at::Tensor input) = 0;
  // Splits count rows of dim 0 per member; empty lists mean equal parts.
  virtual WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                           std::vector<int64_t> input_splits) = 0;
  virtual WorkPtr Broadcast(at::Tensor tensor, int root) = 0;
  // All operations of the batch progress together (ncclGroupStart/End): no order among them can
  // deadlock.
  virtual WorkPtr SendRecv(std::vector<P2POp> batch) = 0;
  // Opens all channels of SendRecv; only channel 0 is open without it. Called by every member of
  // the group at the same place in its order of operations; may block until all have. Calling it
  // again costs nothing. (NCCL matches by order alone, so that a channel is a communicator of its
  // own; other backends have nothing to do.)
  virtual absl::Status OpenChannels() { return absl::OkStatus(); }
  virtual WorkPtr Barrier() = 0;

  // A new group of the given members (indices inside this group, in the new group's order). Called
  // by every member of THIS group in the same order (as ncclCommSplit); a caller that is not in
  // `members` gets nullptr. The name must be the same on all callers. Equal groups may share one
  // underlying communicator.
  virtual absl::StatusOr<std::shared_ptr<Communicator>> Split(std::string name,
                                                              std::vector<int> members) = 0;

  // Frees every thread that waits in this group or in any group split from it, within 100 ms. Never
  // blocks on a peer.
  virtual void Abort(const std::string& reason) = 0;

  // The ring buffer of recent operations, newest last, one line each: sequence, operation, sizes,
  // state, and for the unfinished one which ranks have arrived (where the backend can know it). For
  // hang reports.
  virtual std::string Describe() = 0;

  // Tells `observer` of every operation of this group on this rank from now on; null ends it: then
  // it is not called any more once this returns. Groups that share what runs the operations (equal
  // ones may) share the observer too.
  virtual void Observe(OpObserver* /*observer*/) {}
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

// Thrown by tensor code that runs inside autograd, where a Status cannot travel. Caught at the edge
// of the step.
struct CollectiveError : std::runtime_error {
  explicit CollectiveError(absl::Status s)
      : std::runtime_error(std::string(s.message())), status(std::move(s)) {}
  absl::Status status;
};

// Waits; throws CollectiveError when the operation failed.
inline void WaitOrThrow(const WorkPtr& work) {
  if (absl::Status status = work->Wait(); !status.ok()) throw CollectiveError(std::move(status));
}

}  // namespace muster
