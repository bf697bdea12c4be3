// What a training step needs of the data-parallel wrapper of a rank's model chunks, whatever it
// shards: DistributedDataParallel (ddp.h: all-reduce, distributed optimizer) and the fully sharded
// forms (reference 15). One thread (the rank's).
//
// A step:
//   dp->ZeroGradBuffer();
//   { auto no_sync = dp->no_sync(); ...backward of all microbatches but the last... }
//   ...backward of the last microbatch: with overlap the reductions start in here...
//   FinalizeModelGrads(*dp, ...);      // finalize_grads.h: waits, then this rank's gradients
//                                      // (shards()) are final
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/parallel/owned_shard.h"
#include "worker/parallel/parameter.h"

namespace muster {

class DataParallel {
 public:
  virtual ~DataParallel() = default;

  // While it lives, backward passes are not the last ones of the step: what reduces once a step
  // only accumulates. Also the schedule's no_sync_func.
  class NoSync {
   public:
    explicit NoSync(DataParallel& dp) : dp_(dp) { dp_.SetLastMicrobatch(false); }
    ~NoSync() { dp_.SetLastMicrobatch(true); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& dp_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // The schedule's grad_sync_func (overlap_grad_reduce with align_grad_reduce): starts the
  // reductions of a chunk at the schedule's point, inside a no_sync scope. Does not wait.
  virtual absl::Status StartGradSync(int chunk) = 0;
  // One microbatch's backward pass through `chunk` has ended. For what reduces every microbatch.
  virtual absl::Status EndBackward(int /*chunk*/) { return absl::OkStatus(); }
  // Waits for the chunk's reductions (starts those that are due). Idempotent within a step.
  virtual absl::Status FinishGradSync(int chunk) = 0;
  // Start of a step: no gradient has been seen.
  virtual void ZeroGradBuffer() = 0;
  // Every gradient that this rank keeps (shards()) times `factor` (per-token mode). After
  // FinishGradSync.
  virtual void ScaleGradients(double factor) = 0;
  // Makes all ranks of each data-parallel group start from rank 0's parameters.
  virtual absl::Status BroadcastParams() = 0;

  // What this rank's optimizer updates, of all chunks in order. Parameters without a part are left
  // out.
  virtual std::vector<OwnedShard> shards() const = 0;

  // The schedule's param_sync_func: dispatches the chunk's gathers and does not wait. A no-op while
  // the hooks are off.
  virtual absl::Status StartParamSync(int chunk) = 0;
  // Every parameter becomes whole in Parameter::data, now (after an update without overlap, before
  // checkpoints and comparisons).
  virtual absl::Status SyncParams() = 0;
  // Fully sharded: a rank holds shards() of the parameters; Parameter::data is whole inside passes
  // only, and between SyncParams and ReleaseParams.
  virtual bool shards_hold_parameters() const { return false; }
  virtual absl::Status ReleaseParams() { return absl::OkStatus(); }
  // Parameters travel behind the forward passes that follow: nobody has to call SyncParams after an
  // update.
  virtual bool gathers_behind_forward() const = 0;
  // The forward pre-hooks of overlap_param_gather (reference 6.5): off at first.
  virtual void EnableForwardPreHook() = 0;
  virtual absl::Status DisableForwardPreHook(bool param_sync = true) = 0;
  virtual bool forward_pre_hook_enabled() const = 0;

  // The epoch's groups have failed: what was under way in them is forgotten, hooks are off, and so
  // is what was learned from earlier steps, since a rank that joins has not seen them. Final
  // gradients stay until ZeroGradBuffer; whole parameters must be gathered anew (SyncParams).
  // Nothing may write to the buffers any more.
  virtual void ForgetUnfinished() = 0;

  virtual int num_chunks() const = 0;
  // Norms of this rank's gradients of this step before their reduction, piece by piece in a fixed
  // order, of what was reduced so far. Empty where gradients are not checked.
  struct LocalNorm {
    std::string where;  // "bucket 3 of chunk 0, which begins with <parameter>"
    double norm = 0;
  };
  virtual std::vector<LocalNorm> LocalNorms() const = 0;
  // OK, or INTERNAL naming the first of them that is NaN or infinite.
  absl::Status CheckBucketNorms() const;

 protected:
  virtual void SetLastMicrobatch(bool value) = 0;
};

}  // namespace muster
