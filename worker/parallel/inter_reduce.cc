#include "worker/parallel/inter_reduce.h"

#include <utility>

#include "absl/status/status.h"

namespace muster {

class InterReducer::ShardSum : public Work {
 public:
  ShardSum(InterReducer& reducer, WorkPtr scatter, at::Tensor shard)
      : reducer_(reducer), scatter_(std::move(scatter)), shard_(std::move(shard)) {}

  void Start() {
    scattered_ = scatter_->Wait();
    if (scattered_.ok()) sum_ = reducer_.inter_.AllReduce(shard_, ReduceOp::kSum);
  }
  absl::Status Wait() override {
    if (sum_ == nullptr && scattered_.ok()) reducer_.StartWaiting();
    if (!scattered_.ok()) return scattered_;
    if (sum_ == nullptr) return absl::CancelledError("its step was thrown away");
    return sum_->Wait();
  }
  bool IsDone() override { return !scattered_.ok() || (sum_ != nullptr && sum_->IsDone()); }

 private:
  InterReducer& reducer_;
  const WorkPtr scatter_;
  const at::Tensor shard_;
  absl::Status scattered_;
  WorkPtr sum_;
};

WorkPtr InterReducer::Then(WorkPtr scatter, at::Tensor shard) {
  StartWaiting();
  waiting_.push_back(std::make_shared<ShardSum>(*this, std::move(scatter), std::move(shard)));
  return waiting_.back();
}

void InterReducer::StartWaiting() {
  for (const auto& sum : waiting_) sum->Start();
  waiting_.clear();
}

}  // namespace muster
