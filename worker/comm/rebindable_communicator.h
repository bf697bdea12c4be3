// A group's handle that outlives the group: what runs the operations can be replaced when the
// members have formed anew after a failure, in the same layout. Whoever holds the handle (model,
// data parallelism, optimizer) need not know.
//
// Thread-safety: as in communicator.h; Bind belongs to the thread that issues operations, which has
// none of the old group under way that it still cares for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/runtime/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/op_progress.h"

namespace muster {

class RebindableCommunicator final : public Communicator {
 public:
  // `progress` follows the operations; may be null.
  RebindableCommunicator(CommunicatorPtr inner, std::shared_ptr<OpProgress> progress);
  ~RebindableCommunicator() override;

  // From now on operations run in `inner`: of the same name, members and rank.
  void Bind(CommunicatorPtr inner);
  // What runs the operations.
  CommunicatorPtr inner() const;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override;
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override;
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override;
  WorkPtr Broadcast(at::Tensor tensor, int root) override;
  WorkPtr SendRecv(std::vector<P2POp> batch) override;
  absl::Status OpenChannels() override { return current_->OpenChannels(); }
  WorkPtr Barrier() override { return current_->Barrier(); }
  // The new group is the inner one's: it ends with it.
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override;
  void Abort(const std::string& reason) override { inner()->Abort(reason); }
  std::string Describe() override { return inner()->Describe(); }
  // With `progress`, of all handles that share it.
  void Observe(OpObserver* observer) override;

 private:
  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::shared_ptr<OpProgress> progress_;
  Communicator* current_;  // inner_, for the thread that issues
  mutable Mutex mu_;
  CommunicatorPtr inner_ ABSL_GUARDED_BY(mu_);
};

// A group whose peers hold what this rank does, and say what it says: an all-gather repeats its
// input, a sum of one value is that value. For building a state that is filled from the peers
// afterwards, while these go on with theirs. No messages can be sent to one of them.
CommunicatorPtr MakeUnboundCommunicator(std::string name, std::vector<int> ranks, int rank);

}  // namespace muster
