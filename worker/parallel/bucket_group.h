// The life of one bucket group's gradients in a step (reference 6.4; Megatron:
// _ParamAndGradBucketGroup): ready counts, start and end of its reduction.
//
//   Reset -> GradReady* (hooks, in the backward pass) -> StartGradSync -> FinishGradSync -> Reset
//
// First batch: nothing is known about how often each parameter fires in a microbatch (a tied weight
// fires twice), so the reduction is started by FinishGradSync. The counts seen then become golden
// at the next Reset; from then on GradReady starts the reduction when the counts reach them.
// Where the schedule drives the reductions, no hook counts (is_last_microbatch is off during the
// backward passes) and the first batch lasts for ever.
// Thread-safety: one thread (the rank's; on CPU its hooks run there too).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/grad_buffer.h"
#include "worker/parallel/inter_reduce.h"

namespace muster {

// Local gradients of one bucket, before scaling and reduction. NaN and Inf are fatal to the step,
// which the caller decides (the reductions go on, so that no rank waits for another).
struct BucketNorm {
  int bucket = 0;
  std::string first_param;  // to find the place in the model
  double norm = 0;          // L2
};
// The same as it is computed: a scalar fp64 tensor, so that a GPU is not waited for in
// mid-backward.
struct PendingNorm {
  int bucket = 0;
  std::string first_param;
  at::Tensor norm;
};

class BucketGroup {
 public:
  struct Options {
    bool overlap_grad_reduce = false;
    bool check_norms = true;  // check_for_nan_in_grad
    double scale_before = 1;  // multiplied into the bucket just before the collective (6.3)
    double scale_after = 1;   // 1 / ranks where average_in_collective asks for a mean
    // Distributed optimizer: each member of the group gets the sum of its own shard only, in place;
    // what lies outside of it means nothing any more.
    bool scatter = false;
    InterReducer* inter = nullptr;  // and sums it over the instances, where there are several
  };
  // `buckets`, `group` and options.inter outlive this.
  BucketGroup(std::vector<const GradBucket*> buckets, Communicator& group, const Options& options);

  // Counts a contribution to `parameter` and starts the reduction when it was the last one.
  // FAILED_PRECONDITION when the reduction has started already: its result is lost.
  absl::Status GradReady(const Parameter& parameter);
  // Scales and reduces; does not wait. While still first batch, a no-op when already started;
  // after that FAILED_PRECONDITION.
  absl::Status StartGradSync();
  // Waits (starts first where that is due). FAILED_PRECONDITION with overlap when a gradient never
  // arrived. Repeating it within a step does nothing.
  absl::Status FinishGradSync();
  void Reset();
  // Its group has failed: works and counts are forgotten, golden ones too, so that all ranks start
  // the next step's reductions alike.
  void ForgetUnfinished();
  // What this rank keeps of the gradients times `factor`. After FinishGradSync.
  void ScaleOwned(double factor);

  void set_is_last_microbatch(bool value) { is_last_microbatch_ = value; }
  // Of this step; empty before the reduction started or with check_norms off.
  const std::vector<PendingNorm>& norms() const { return norms_; }
  const std::vector<const GradBucket*>& buckets() const { return buckets_; }

 private:
  using Counts = std::map<const Parameter*, int>;
  absl::Status MissingGradients() const;
  size_t NumParams() const;
  // What this rank keeps of a bucket: its shard, or all of it.
  at::Tensor Owned(const GradBucket& bucket) const;
  WorkPtr Reduce(const GradBucket& bucket);

  const std::vector<const GradBucket*> buckets_;
  Communicator& group_;
  const Options options_;

  bool is_first_batch_ = true;
  bool is_last_microbatch_ = true;
  bool finished_ = false;
  Counts counts_, golden_counts_;
  std::vector<WorkPtr> works_;  // not empty: started, not yet waited for
  std::vector<PendingNorm> norms_;
};

}  // namespace muster
