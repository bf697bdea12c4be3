#include "worker/parallel/param_gather.h"

#include <utility>

#include "common/base/status.h"
#include "worker/parallel/param_buffer.h"

namespace muster {

absl::Status ParamGather::Start() {
  if (!works_.empty()) {
    return absl::FailedPreconditionError(
        "the parameters of a bucket group are being gathered already: each gather must be awaited "
        "before the next one is dispatched");
  }
  // In place: each rank's shard lies where its peers receive it.
  for (const at::Tensor& bucket : buckets_)
    works_.push_back(group_.AllGather(bucket, ShardView(bucket, group_.rank(), group_.size())));
  dispatched_ = true;
  return absl::OkStatus();
}

absl::Status ParamGather::Await(bool skip_next) {
  if (!dispatched_) RETURN_IF_ERROR(Start());
  if (works_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Wait());
  if (skip_next || next_ == nullptr || next_->dispatched_) return absl::OkStatus();
  return next_->Start();
}

absl::Status ParamGather::StartForced() { return works_.empty() ? Start() : absl::OkStatus(); }

absl::Status ParamGather::Wait() {
  absl::Status first_error;
  for (const WorkPtr& work : works_) first_error.Update(work->Wait());
  works_.clear();
  return first_error;
}

absl::Status ParamGather::Expire() {
  dispatched_ = false;
  return Wait();
}

}  // namespace muster
