// Parameters that travel together: those of one unit, of one kind (dtype; dense or expert), as one
// flat tensor cut into equal shards over a group. What one rank holds of them, and how it gathers
// their values and reduces their gradients: one collective each (reference 15.1; the ranges are
// those of 6.6 for one bucket).
//
//   values     shards --StartGather--> gathering --FinishGather--> whole --Release--> shards
//   gradients  (none) --OpenGrads--> local, one microbatch's --StartReduce--> reducing
//              --FinishReduce--> (none); the shard has the sum of all microbatches so far
//   step       ZeroGrads, those many times, FinishStep: the shard's gradient is final
//
// Alone in its group a piece has nothing to send: its values are whole, and its gradients gather in
// the shard itself. Thread-safety: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/block_pool.h"
#include "worker/parallel/bucket_layout.h"
#include "worker/parallel/owned_shard.h"
#include "worker/parallel/parameter.h"

namespace muster {

class ShardedPiece {
 public:
  struct Options {
    bool shard_values = true;  // else they are kept whole, and the shard is a part of them
    at::ScalarType grad_dtype = at::kFloat;
    double scale_before = 1, scale_after = 1;  // of a reduction (reference 6.3)
    bool check_norms = true;
    // Other instances, each of which has all shards: gradients are summed over them once a step.
    // Null: there is one. With shard_over_outer the optimizer's part is an outer.size()-th of the
    // shard.
    Communicator* outer = nullptr;
    bool shard_over_outer = false;
  };
  // `params` of one dtype, `layout` and `bucket` of it: the ones of this piece. Moves their values
  // here (the leaves stay) and sets main_grad, which has memory in the backward pass only.
  // `group` and `pool` outlive this.
  ShardedPiece(const std::vector<ParameterPtr>& params, const BucketLayout& layout, int bucket,
               Communicator& group, BlockPool& pool, const Options& options);
  ~ShardedPiece();  // takes main_grad back; values that are not whole are lost to the parameters
  ShardedPiece(const ShardedPiece&) = delete;
  ShardedPiece& operator=(const ShardedPiece&) = delete;

  const std::vector<ParameterPtr>& params() const { return params_; }
  bool is_alone() const { return alone_; }

  // Does nothing while the values are whole or on their way.
  absl::Status StartGather();
  absl::Status FinishGather();
  bool is_whole() const { return values_state_ == ValuesState::kWhole; }
  // The whole values may go; they stay where they are not sharded. Waits for a gather in flight.
  absl::Status Release();
  // The shards are about to change: whole values are those of the past.
  absl::Status Expire();

  bool grads_are_open() const { return grads_open_; }
  void OpenGrads();
  // Scales the local gradients (zeros where none came) and sends them; does not wait.
  void StartReduce();
  bool is_reducing() const { return work_ != nullptr; }
  absl::Status FinishReduce();
  // The step's last reduction is finished: starts the sum over the instances. Once a step.
  void StartOuterReduce();

  // Its groups have failed: values are those of the shards, local gradients are dropped; the
  // shard's stay. Nothing may write to lent memory any more.
  void ForgetUnfinished();

  void ZeroGrads();
  // Waits; after it owned() has the step's gradients.
  absl::Status FinishStep();
  void ScaleOwned(double factor);

  // What this rank's optimizer updates, in the layout's order.
  const std::vector<OwnedShard>& owned() const { return owned_; }
  // L2 norms of the local gradients of each reduction of the step, before it: scalar fp64 tensors.
  const std::vector<at::Tensor>& norms() const { return norms_; }

 private:
  enum class ValuesState { kShards, kGathering, kWhole };
  void MoveValues();
  void MakeGrads();
  void ListOwned(const std::vector<ParameterPtr>& params, const BucketLayout& layout, int bucket);
  void ZeroGaps(const at::Tensor& flat) const;
  // Zeros where nothing came, norm, scale.
  void Complete(const at::Tensor& local_grads);
  // What of a shard (numel / group) this instance's optimizer updates.
  at::Tensor OwnedPart(const at::Tensor& shard) const;

  Communicator& group_;
  BlockPool& pool_;
  const Options options_;
  const bool alone_;
  std::vector<ParameterPtr> params_;  // in the order of the layout
  std::vector<ElementRange> ranges_;  // of params_, in this piece
  std::vector<ElementRange> gaps_;    // padding
  int64_t numel_ = 0;

  std::optional<LentTensor> lent_values_;  // where values are sharded
  at::Tensor whole_values_;                // (numel)
  at::Tensor shard_values_;                // (numel / group)
  ValuesState values_state_ = ValuesState::kWhole;
  bool outer_is_behind_ = false;  // the shard must be gathered over the instances first
  WorkPtr gather_;

  std::optional<LentTensor> lent_grads_;  // not where alone
  at::Tensor shard_grads_;                // (numel / group)
  std::vector<at::Tensor> main_grads_;    // of params_
  bool grads_open_ = false;
  bool shard_grads_are_zero_ = true;
  bool reduces_into_shard_ = false;  // the reduction in flight overwrites the shard
  bool outer_started_ = false, step_finished_ = false;
  WorkPtr work_, outer_work_;

  std::vector<OwnedShard> owned_;
  std::vector<at::Tensor> norms_;
};

}  // namespace muster
