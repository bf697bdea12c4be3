// DistributedDataParallel: reduces the gradients of a rank's model chunks over its data-parallel
// group, bucket by bucket, while the backward pass still runs (reference 6).
//
// Owns the gradient buffers; borrows the parameters (it sets their main_grad and sink, and takes
// both back when it goes) and the communicators. Gradients reach it through Parameter's sink, from
// ordinary autograd by a hook. Thread-safety: one thread (the rank's).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/bucket_group.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/grad_buffer.h"
#include "worker/parallel/inter_reduce.h"
#include "worker/parallel/owned_shard.h"
#include "worker/parallel/parallel_context.h"
#include "worker/parallel/param_buffer.h"
#include "worker/parallel/param_gather.h"
#include "worker/parallel/parameter.h"

namespace muster {

// Megatron's DistributedDataParallelConfig (reference 6.1).
struct DdpOptions {
  bool overlap_grad_reduce = false;
  bool grad_reduce_in_fp32 = false;  // accumulate_allreduce_grads_in_fp32
  bool average_in_collective = false;
  bool calculate_per_token_loss = false;
  bool check_for_nan_in_grad = true;
  std::optional<int64_t> bucket_size, num_buckets;  // elements; not both
  // Gradients are reduce-scattered, each rank's optimizer updates its shard of every bucket, and
  // the parameters are all-gathered. Parameters are moved into flat buffers of the same layout.
  bool use_distributed_optimizer = false;
  // With it: gathers run behind the forward pass, driven by Parameter::AwaitGather (forward
  // pre-hooks) and, with align_param_gather, dispatched by the schedule (StartParamSync).
  bool overlap_param_gather = false, align_param_gather = false;
  bool pad_buckets_for_high_nccl_busbw = false;  // with it: buckets are multiples of 2^16 elements
};

// Who gradients are reduced over. Borrowed.
struct DdpGroups {
  Communicator* dp_cp = nullptr;      // dense parameters
  Communicator* expert_dp = nullptr;  // expert parameters (allreduce is false)
  // Several distributed optimizer instances: buckets are cut over the intra group, and each shard
  // is summed over the inter group. With one instance intra is the group above, inter of size 1;
  // null stands for that.
  Communicator* intra_dp_cp = nullptr;
  Communicator* intra_expert_dp = nullptr;
  Communicator* inter = nullptr;  // topology's inter_expert_dp: dense parameters use it too
  int pp_rank = 0;
  static DdpGroups Of(const ParallelContext& parallel);
};

// The factor multiplied into a bucket before its reduction, and the one after it (reference 6.3).
// After is not 1 only where average_in_collective wants a mean, since reductions here are sums.
struct GradScaling {
  double before = 1, after = 1;
};
GradScaling ComputeGradScaling(const DdpOptions& options, bool is_expert, int dp_cp_size,
                               int expert_dp_size);

struct ChunkBucketNorm {
  int chunk = 0;
  bool is_expert = false;
  BucketNorm bucket;
};

class DistributedDataParallel : public DataParallel, public GradSink, private ParamGatherer {
 public:
  // `chunks`: the parameters of each model chunk in registration order; data must be leaves. With
  // the distributed optimizer their memory moves into flat buffers (the leaves stay, with their
  // values and hooks): tensors detached from them before are no longer theirs.
  // INVALID_ARGUMENT for a parameter listed twice, options that exclude each other or groups whose
  // sizes do not fit; FAILED_PRECONDITION for a parameter of another one that lives still.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(
      std::vector<std::vector<ParameterPtr>> chunks, const DdpGroups& groups,
      const DdpOptions& options);
  // The parameters keep their values and memory. A gather in flight is not waited for, since its
  // peers may be gone: DisableForwardPreHook does that.
  ~DistributedDataParallel() override;
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  absl::Status StartGradSync(int chunk) override;
  absl::Status FinishGradSync(int chunk) override;
  void ZeroGradBuffer() override;  // writes no memory
  void ScaleGradients(double factor) override;
  absl::Status BroadcastParams() override;

  // Every parameter whole, or with the distributed optimizer its shard of each bucket.
  std::vector<OwnedShard> shards() const override;

  // The parameters' all-gather (reference 6.5); all of them no-ops without the distributed
  // optimizer, and the hooks' without overlap_param_gather too.
  // FAILED_PRECONDITION while one of the chunk's gathers is in flight.
  absl::Status StartParamSync(int chunk) override;
  // All buckets travel at once.
  absl::Status SyncParams() override;
  bool gathers_behind_forward() const override { return options_.overlap_param_gather; }
  // From now on AwaitGather waits (and dispatches where nothing was). Checks that it is off, as it
  // is at first: the first step reads the parameters as they are, so that a bad checkpoint is not
  // hidden by a gather.
  void EnableForwardPreHook() override;
  // With param_sync, gathers everything; else only waits for what is in flight.
  absl::Status DisableForwardPreHook(bool param_sync = true) override;
  bool forward_pre_hook_enabled() const override { return forward_pre_hook_enabled_; }
  void ForgetUnfinished() override;

  int num_chunks() const override { return static_cast<int>(chunks_.size()); }
  const DdpOptions& options() const { return options_; }
  std::vector<const GradBuffer*> buffers(int chunk) const;
  // Norms of this rank's gradients of this step before reduction, for the NaN and Inf check; one
  // entry a bucket that was reduced so far. Empty with check_for_nan_in_grad off.
  std::vector<ChunkBucketNorm> bucket_norms() const;
  std::vector<LocalNorm> LocalNorms() const override;

  void GradReady(Parameter& parameter) override;  // throws CollectiveError

 private:
  struct Chunk {
    std::vector<ParameterPtr> params;
    std::vector<std::unique_ptr<GradBuffer>> buffers;
    std::vector<std::unique_ptr<BucketGroup>> groups;  // in the order in which they get ready
    // Distributed optimizer; else empty. One for each of the above.
    std::vector<std::unique_ptr<ParamBuffer>> param_buffers;
    std::vector<std::unique_ptr<ParamGather>> gathers;
  };
  // A bucket of a chunk by its place.
  struct BucketRef {
    size_t buffer = 0;
    int bucket = 0;
  };
  struct GroupsOfParam {
    BucketGroup* grads = nullptr;
    ParamGather* gather = nullptr;  // null without the distributed optimizer
  };
  DistributedDataParallel(const DdpGroups& groups, const DdpOptions& options);
  // Who buckets are reduced over: with the distributed optimizer its instance.
  Communicator& ReductionGroup(bool is_expert) const;
  void AddChunk(std::vector<ParameterPtr> params, int64_t num_parameters);
  void AddBuffers(Chunk& chunk, std::optional<int64_t> bucket_size);
  void AddGroup(Chunk& chunk, const std::vector<BucketRef>& buckets, bool is_expert);
  void ChainGathers(Chunk& chunk);
  void SetLastMicrobatch(bool value) override;
  void ParamNeeded(Parameter& parameter) override;  // throws CollectiveError

  bool forward_pre_hook_enabled_ = false;
  const DdpGroups groups_;
  const DdpOptions options_;
  std::optional<InterReducer> inter_;  // several instances of the distributed optimizer
  std::vector<Chunk> chunks_;
  std::unordered_map<const Parameter*, GroupsOfParam> groups_of_;
};

}  // namespace muster
