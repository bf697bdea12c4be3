#include "worker/parallel/sharded_piece.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/flat_ops.h"
#include "worker/parallel/param_buffer.h"

namespace muster {

ShardedPiece::ShardedPiece(const std::vector<ParameterPtr>& params, const BucketLayout& layout,
                           int bucket, Communicator& group, BlockPool& pool, const Options& options)
    : group_(group), pool_(pool), options_(options), alone_(group.size() == 1) {
  at::NoGradGuard no_grad;
  const BucketSpan& span = layout.buckets[bucket];
  numel_ = span.range.size();
  int64_t end = 0;  // of what was placed so far
  for (const int i : span.params) {
    const ElementRange range{layout.params[i].begin - span.range.begin,
                             layout.params[i].end - span.range.begin};
    if (range.begin > end) gaps_.push_back({end, range.begin});
    params_.push_back(params[i]);
    ranges_.push_back(range);
    end = range.end;
  }
  if (numel_ > end) gaps_.push_back({end, numel_});
  MoveValues();
  MakeGrads();
  ListOwned(params, layout, bucket);
  ZeroGrads();
}

ShardedPiece::~ShardedPiece() {
  for (const ParameterPtr& p : params_) {
    p->main_grad = at::Tensor();
    p->main_grad_squares.reset();
  }
}

void ShardedPiece::MoveValues() {
  const at::Tensor& first = params_[0]->data;
  const auto options = at::TensorOptions(first.device()).dtype(first.scalar_type());
  if (options_.shard_values && !alone_) {
    lent_values_.emplace(numel_, first.scalar_type(), first.device());
    lent_values_->Lend(pool_);
    whole_values_ = lent_values_->tensor();
    ZeroGaps(whole_values_);
  } else {
    whole_values_ = at::zeros({numel_}, options);
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    at::Tensor& value = params_[i]->data;
    const at::Tensor view =
        whole_values_.narrow(0, ranges_[i].begin, ranges_[i].size()).view(value.sizes());
    view.copy_(value);
    // The leaf stays: requires_grad, its hooks, and every copy of the handle.
    value.set_data(view);
  }
  const at::Tensor own = ShardView(whole_values_, group_.rank(), group_.size());
  shard_values_ = lent_values_.has_value() ? own.clone() : own;
  // Whatever writes the shards before the first pass (a checkpoint) need not tell.
  if (lent_values_.has_value()) lent_values_->Return(pool_);
  outer_is_behind_ = options_.shard_over_outer;
  values_state_ = alone_ && !outer_is_behind_ ? ValuesState::kWhole : ValuesState::kShards;
}

void ShardedPiece::MakeGrads() {
  const at::Device device = params_[0]->data.device();
  const auto options = at::TensorOptions(device).dtype(options_.grad_dtype);
  // Zeros matter for the padding only.
  shard_grads_ = at::zeros({numel_ / group_.size()}, options);
  if (!alone_) lent_grads_.emplace(numel_, options_.grad_dtype, device);
  const at::Tensor& local = alone_ ? shard_grads_ : lent_grads_->tensor();
  for (size_t i = 0; i < params_.size(); ++i) {
    main_grads_.push_back(
        local.narrow(0, ranges_[i].begin, ranges_[i].size()).view(params_[i]->data.sizes()));
  }
}

void ShardedPiece::ListOwned(const std::vector<ParameterPtr>& params, const BucketLayout& layout,
                             int bucket) {
  const int instances = options_.shard_over_outer ? options_.outer->size() : 1;
  const int instance = options_.shard_over_outer ? options_.outer->rank() : 0;
  const int64_t shard_begin = group_.rank() * (numel_ / group_.size());
  for (const ParamShard& part : ShardOfBucket(layout, bucket, group_.rank() * instances + instance,
                                              group_.size() * instances)) {
    OwnedShard owned{.parameter = params[part.param], .in_param = part.in_param};
    const auto view = [&](const at::Tensor& shard) {
      const at::Tensor flat =
          shard.narrow(0, part.in_bucket.begin - shard_begin, part.in_bucket.size());
      return owned.is_whole() ? flat.view(owned.parameter->data.sizes()) : flat;
    };
    owned.data = view(shard_values_);
    owned.grad = view(shard_grads_);
    owned_.push_back(std::move(owned));
  }
}

void ShardedPiece::ZeroGaps(const at::Tensor& flat) const {
  for (const ElementRange& gap : gaps_) flat.narrow(0, gap.begin, gap.size()).zero_();
}

at::Tensor ShardedPiece::OwnedPart(const at::Tensor& shard) const {
  if (!options_.shard_over_outer) return shard;
  return ShardView(shard, options_.outer->rank(), options_.outer->size());
}

absl::Status ShardedPiece::StartGather() {
  if (values_state_ != ValuesState::kShards) return absl::OkStatus();
  if (outer_is_behind_) {
    RETURN_IF_ERROR(options_.outer->AllGather(shard_values_, OwnedPart(shard_values_))->Wait());
    outer_is_behind_ = false;
  }
  values_state_ = ValuesState::kWhole;
  if (alone_) return absl::OkStatus();
  if (lent_values_.has_value()) lent_values_->Lend(pool_);
  gather_ = group_.AllGather(whole_values_, shard_values_);
  values_state_ = ValuesState::kGathering;
  return absl::OkStatus();
}

absl::Status ShardedPiece::FinishGather() {
  if (values_state_ != ValuesState::kGathering) return absl::OkStatus();
  RETURN_IF_ERROR(gather_->Wait());
  gather_ = nullptr;
  values_state_ = ValuesState::kWhole;
  return absl::OkStatus();
}

absl::Status ShardedPiece::Release() {
  RETURN_IF_ERROR(FinishGather());
  if (!lent_values_.has_value() || values_state_ != ValuesState::kWhole) return absl::OkStatus();
  lent_values_->Return(pool_);
  values_state_ = ValuesState::kShards;
  return absl::OkStatus();
}

absl::Status ShardedPiece::Expire() {
  RETURN_IF_ERROR(Release());
  outer_is_behind_ = options_.shard_over_outer;
  if (!alone_ || outer_is_behind_) values_state_ = ValuesState::kShards;
  return absl::OkStatus();
}

void ShardedPiece::OpenGrads() {
  MUSTER_CHECK(!grads_open_ && !is_reducing());
  grads_open_ = true;
  if (alone_) return;
  lent_grads_->Lend(pool_);
  at::NoGradGuard no_grad;
  ZeroGaps(lent_grads_->tensor());
  for (const ParameterPtr& p : params_) p->main_grad_is_zero = true;
}

void ShardedPiece::Complete(const at::Tensor& local_grads) {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i]->main_grad_is_zero) main_grads_[i].zero_();
    params_[i]->main_grad_is_zero = false;
  }
  at::Tensor flat = local_grads;
  if (!options_.check_norms) {
    if (options_.scale_before != 1) flat.mul_(options_.scale_before);
    return;
  }
  if (flat.is_cpu()) {
    norms_.push_back(at::scalar_tensor(std::sqrt(ScaleAndSumOfSquares(flat, options_.scale_before)),
                                       at::TensorOptions().dtype(at::kDouble)));
    return;
  }
  norms_.push_back(DeviceNorm(flat));
  if (options_.scale_before != 1) flat.mul_(options_.scale_before);
}

void ShardedPiece::StartReduce() {
  MUSTER_CHECK(!is_reducing());
  at::NoGradGuard no_grad;
  if (!grads_open_) OpenGrads();  // a pass without gradients: peers wait for this rank's zeros
  grads_open_ = false;
  if (alone_) return;  // completed once, at the step's end
  const at::Tensor& local = lent_grads_->tensor();
  Complete(local);
  reduces_into_shard_ = shard_grads_are_zero_;
  shard_grads_are_zero_ = false;
  const at::Tensor sum =
      reduces_into_shard_ ? shard_grads_ : ShardView(local, group_.rank(), group_.size());
  work_ = group_.ReduceScatter(sum, local, ReduceOp::kSum);
}

absl::Status ShardedPiece::FinishReduce() {
  if (!is_reducing()) return absl::OkStatus();
  RETURN_IF_ERROR(work_->Wait());
  work_ = nullptr;
  at::NoGradGuard no_grad;
  if (!reduces_into_shard_)
    shard_grads_.add_(ShardView(lent_grads_->tensor(), group_.rank(), group_.size()));
  lent_grads_->Return(pool_);
  return absl::OkStatus();
}

void ShardedPiece::StartOuterReduce() {
  if (outer_started_) return;
  outer_started_ = true;
  at::NoGradGuard no_grad;
  if (alone_) {
    Complete(shard_grads_);
  } else if (shard_grads_are_zero_) {
    shard_grads_.zero_();
  }
  if (options_.outer == nullptr) return;
  outer_work_ =
      options_.shard_over_outer
          ? options_.outer->ReduceScatter(OwnedPart(shard_grads_), shard_grads_, ReduceOp::kSum)
          : options_.outer->AllReduce(shard_grads_, ReduceOp::kSum);
}

void ShardedPiece::ForgetUnfinished() {
  gather_ = work_ = outer_work_ = nullptr;
  if (lent_values_.has_value() && lent_values_->has_memory()) lent_values_->Return(pool_);
  outer_is_behind_ = options_.shard_over_outer;
  values_state_ = alone_ && !outer_is_behind_ ? ValuesState::kWhole : ValuesState::kShards;
  if (lent_grads_.has_value() && lent_grads_->has_memory()) lent_grads_->Return(pool_);
  grads_open_ = false;
}

void ShardedPiece::ZeroGrads() {
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i]->main_grad = main_grads_[i];
    params_[i]->main_grad_is_zero = true;
    params_[i]->main_grad_squares.reset();
  }
  shard_grads_are_zero_ = true;
  outer_started_ = step_finished_ = false;
  outer_work_ = nullptr;
  norms_.clear();
}

absl::Status ShardedPiece::FinishStep() {
  if (step_finished_) return absl::OkStatus();
  RETURN_IF_ERROR(FinishReduce());
  StartOuterReduce();
  if (outer_work_ != nullptr) RETURN_IF_ERROR(outer_work_->Wait());
  step_finished_ = true;
  ScaleOwned(options_.scale_after);
  for (const ParameterPtr& p : params_) p->main_grad_is_zero = false;
  // Of a parameter that it owns the optimizer reads main_grad.
  for (const OwnedShard& owned : owned_)
    if (owned.is_whole()) owned.parameter->main_grad = owned.grad;
  return absl::OkStatus();
}

void ShardedPiece::ScaleOwned(double factor) {
  if (factor == 1.0) return;
  at::NoGradGuard no_grad;
  OwnedPart(shard_grads_).mul_(factor);
}

}  // namespace muster
