// The life of one bucket group's parameter values with the distributed optimizer (reference 6.5;
// Megatron: start_param_sync, finish_param_sync of _ParamAndGradBucketGroup).
//
//   optimizer updates the own shards -> Start (dispatch) -> Await (a forward function needs one)
//     -> forward and backward passes -> Expire (the gradients are final; values will change)
//
// Groups form a chain in the order in which the forward pass needs them, which is against the order
// of the buckets; Await dispatches the next one, so that it travels behind the computation.
// Thread-safety: one thread (the rank's).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace muster {

class ParamGather {
 public:
  // `buckets`: views of parameter buffers; member r of `group` owns the r-th of group.size() equal
  // parts of each. `group` outlives this.
  ParamGather(std::vector<at::Tensor> buckets, Communicator& group)
      : buckets_(std::move(buckets)), group_(group) {}
  void set_next(ParamGather* next) { next_ = next; }

  // Dispatches and does not wait. FAILED_PRECONDITION while one is in flight.
  absl::Status Start();
  // Before a forward function reads: dispatches where nobody has, waits for what is in flight and
  // then, unless `skip_next` (the schedule dispatches), dispatches the next group's where nobody
  // has. Does nothing for the later parameters of a group.
  absl::Status Await(bool skip_next);
  // A forced gather is StartForced of all groups, then Wait of all. The first keeps one in flight.
  absl::Status StartForced();
  absl::Status Wait();
  // The values are about to change: the next Await must dispatch again. Waits for what nobody
  // awaited, so that no gather reads shards that are being written.
  absl::Status Expire();
  // Its group has failed.
  void ForgetUnfinished() {
    works_.clear();
    dispatched_ = false;
  }

 private:
  const std::vector<at::Tensor> buckets_;
  Communicator& group_;
  ParamGather* next_ = nullptr;
  bool dispatched_ = false;
  std::vector<WorkPtr> works_;  // not empty: in flight
};

}  // namespace muster
