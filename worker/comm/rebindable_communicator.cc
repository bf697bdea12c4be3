#include "worker/comm/rebindable_communicator.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/comm/ready_work.h"

namespace muster {

RebindableCommunicator::RebindableCommunicator(CommunicatorPtr inner,
                                               std::shared_ptr<OpProgress> progress)
    : name_(inner->name()),
      ranks_(inner->ranks()),
      rank_(inner->rank()),
      progress_(std::move(progress)),
      current_(inner.get()),
      inner_(std::move(inner)) {
  if (progress_ != nullptr) current_->Observe(progress_.get());
}

RebindableCommunicator::~RebindableCommunicator() {
  if (progress_ != nullptr) current_->Observe(nullptr);
}

void RebindableCommunicator::Bind(CommunicatorPtr inner) {
  MUSTER_CHECK_MSG(inner->ranks() == ranks_ && inner->rank() == rank_,
                   absl::StrCat("group ", name_, " is bound to one of other members"));
  if (progress_ != nullptr) {
    current_->Observe(nullptr);
    inner->Observe(progress_.get());
  }
  current_ = inner.get();
  MutexLock lock(&mu_);
  inner_.swap(inner);
}

CommunicatorPtr RebindableCommunicator::inner() const {
  MutexLock lock(&mu_);
  return inner_;
}

WorkPtr RebindableCommunicator::AllReduce(at::Tensor tensor, ReduceOp op) {
  return current_->AllReduce(std::move(tensor), op);
}
WorkPtr RebindableCommunicator::ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  return current_->ReduceScatter(std::move(output), std::move(input), op);
}
WorkPtr RebindableCommunicator::AllGather(at::Tensor output, at::Tensor input) {
  return current_->AllGather(std::move(output), std::move(input));
}
WorkPtr RebindableCommunicator::AllToAll(at::Tensor output, at::Tensor input,
                                         std::vector<int64_t> output_splits,
                                         std::vector<int64_t> input_splits) {
  return current_->AllToAll(std::move(output), std::move(input), std::move(output_splits),
                            std::move(input_splits));
}
WorkPtr RebindableCommunicator::Broadcast(at::Tensor tensor, int root) {
  return current_->Broadcast(std::move(tensor), root);
}
WorkPtr RebindableCommunicator::SendRecv(std::vector<P2POp> batch) {
  return current_->SendRecv(std::move(batch));
}

absl::StatusOr<CommunicatorPtr> RebindableCommunicator::Split(std::string name,
                                                              std::vector<int> members) {
  return current_->Split(std::move(name), std::move(members));
}

void RebindableCommunicator::Observe(OpObserver* observer) {
  if (progress_ != nullptr) return progress_->Listen(observer);
  current_->Observe(observer);
}

namespace {

class UnboundCommunicator final : public Communicator {
 public:
  UnboundCommunicator(std::string name, std::vector<int> ranks, int rank)
      : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor, ReduceOp) override { return Done(); }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp) override {
    at::NoGradGuard no_grad;
    const at::Tensor own =
        input.view({-1}).narrow(0, rank_ * output.numel(), output.numel()).clone();
    output.view({-1}).copy_(own);
    return Done();
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    at::NoGradGuard no_grad;
    const at::Tensor own = input.view({-1}).clone();
    for (int i = 0; i < size(); ++i)
      output.view({-1}).narrow(0, i * own.numel(), own.numel()).copy_(own);
    return Done();
  }
  WorkPtr AllToAll(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override {
    return Refused("all_to_all");
  }
  WorkPtr Broadcast(at::Tensor, int) override { return Done(); }
  WorkPtr SendRecv(std::vector<P2POp>) override { return Refused("send_recv"); }
  WorkPtr Barrier() override { return Done(); }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    std::vector<int> global;
    int index = -1;
    for (const int member : members) {
      if (member == rank_) index = static_cast<int>(global.size());
      global.push_back(ranks_[member]);
    }
    if (index < 0) return CommunicatorPtr();
    return MakeUnboundCommunicator(std::move(name), std::move(global), index);
  }
  void Abort(const std::string&) override {}
  std::string Describe() override { return absl::StrCat("group ", name_, " is not formed\n"); }

 private:
  static WorkPtr Done() { return MakeReadyWork(absl::OkStatus()); }
  WorkPtr Refused(const char* op) const {
    return MakeReadyWork(absl::FailedPreconditionError(
        absl::StrCat("group ", name_, ": ", op, " while a state is built that peers will fill")));
  }

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
};

}  // namespace

CommunicatorPtr MakeUnboundCommunicator(std::string name, std::vector<int> ranks, int rank) {
  return std::make_shared<UnboundCommunicator>(std::move(name), std::move(ranks), rank);
}

}  // namespace muster
