#include "worker/parallel/bucket_group.h"

#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include "absl/strings/str_cat.h"
#include "worker/parallel/flat_ops.h"
#include "worker/parallel/param_buffer.h"

namespace muster {
namespace {

// Without peers the gradients are final: the optimizer's norm needs the same sums.
double SumOfFinalGradients(const GradBucket& bucket) {
  double sum = 0;
  for (const ParameterPtr& p : bucket.params) {
    p->main_grad_squares = SumOfSquares(p->main_grad);
    sum += *p->main_grad_squares;
  }
  return sum;
}

// Scales the bucket; its norm before that.
at::Tensor ScaleAndNorm(const GradBucket& bucket, double scale, bool is_final) {
  at::Tensor data = bucket.data;
  if (!data.is_cpu()) {
    const at::Tensor norm = DeviceNorm(data);
    if (scale != 1.0) data.mul_(scale);
    return norm;
  }
  const double sum = is_final ? SumOfFinalGradients(bucket) : ScaleAndSumOfSquares(data, scale);
  return at::scalar_tensor(std::sqrt(sum), at::TensorOptions().dtype(at::kDouble));
}

}  // namespace

BucketGroup::BucketGroup(std::vector<const GradBucket*> buckets, Communicator& group,
                         const Options& options)
    : buckets_(std::move(buckets)), group_(group), options_(options) {}

absl::Status BucketGroup::GradReady(const Parameter& parameter) {
  if (!options_.overlap_grad_reduce || !is_last_microbatch_) return absl::OkStatus();
  if (!works_.empty() || finished_) {
    return absl::FailedPreconditionError(
        absl::StrCat("a gradient of ", parameter.name, " arrived after the reduction of bucket ",
                     buckets_[0]->index, " had started: it fired ", counts_[&parameter] + 1,
                     " times in this step, ", golden_counts_[&parameter],
                     " in the first; the model must use each parameter equally often in every step"
                     " when overlap_grad_reduce is on"));
  }
  ++counts_[&parameter];
  if (!is_first_batch_ && counts_ == golden_counts_) return StartGradSync();
  return absl::OkStatus();
}

absl::Status BucketGroup::StartGradSync() {
  if (!works_.empty() || finished_) {
    if (is_first_batch_) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the gradient reduction of bucket ", buckets_[0]->index, " was started twice in one step"));
  }
  at::NoGradGuard no_grad;
  for (const GradBucket* bucket : buckets_) {
    FillUntouched(*bucket);
    at::Tensor data = bucket->data;
    if (options_.check_norms) {
      const bool is_final =
          group_.size() == 1 && options_.inter == nullptr && options_.scale_before == 1.0;
      norms_.push_back({bucket->index, bucket->params[0]->name,
                        ScaleAndNorm(*bucket, options_.scale_before, is_final)});
    } else if (options_.scale_before != 1.0) {
      data.mul_(options_.scale_before);
    }
    works_.push_back(Reduce(*bucket));
  }
  return absl::OkStatus();
}

absl::Status BucketGroup::FinishGradSync() {
  if (finished_) return absl::OkStatus();
  if (!options_.overlap_grad_reduce) {
    if (works_.empty()) {
      if (absl::Status s = StartGradSync(); !s.ok()) return s;
    }
  } else {
    const bool some_are_missing = !counts_.empty() && counts_.size() < NumParams();
    if (is_first_batch_) {
      if (some_are_missing) return MissingGradients();
      if (absl::Status s = StartGradSync(); !s.ok()) return s;
    }
    if (works_.empty()) return MissingGradients();
  }
  absl::Status first_error;
  for (const WorkPtr& work : works_) first_error.Update(work->Wait());
  works_.clear();
  if (!first_error.ok()) return first_error;
  finished_ = true;
  ScaleOwned(options_.scale_after);
  return absl::OkStatus();
}

void BucketGroup::ScaleOwned(double factor) {
  if (factor == 1.0) return;
  at::NoGradGuard no_grad;
  for (const GradBucket* bucket : buckets_) Owned(*bucket).mul_(factor);
}

at::Tensor BucketGroup::Owned(const GradBucket& bucket) const {
  return options_.scatter ? ShardView(bucket.data, group_.rank(), group_.size()) : bucket.data;
}

WorkPtr BucketGroup::Reduce(const GradBucket& bucket) {
  if (!options_.scatter) return group_.AllReduce(bucket.data, ReduceOp::kSum);
  at::Tensor shard = Owned(bucket);
  WorkPtr scatter = group_.ReduceScatter(shard, bucket.data, ReduceOp::kSum);
  if (options_.inter == nullptr) return scatter;
  return options_.inter->Then(std::move(scatter), std::move(shard));
}

void BucketGroup::Reset() {
  // Not those of a step that was broken off: they would start later reductions too early.
  if (is_first_batch_ && finished_ && !counts_.empty()) {
    golden_counts_ = std::move(counts_);
    is_first_batch_ = false;
  }
  counts_.clear();
  norms_.clear();
  works_.clear();
  is_last_microbatch_ = true;
  finished_ = false;
}

void BucketGroup::ForgetUnfinished() {
  works_.clear();
  counts_.clear();
  golden_counts_.clear();
  is_first_batch_ = is_last_microbatch_ = true;
}

size_t BucketGroup::NumParams() const {
  size_t num_params = 0;
  for (const GradBucket* bucket : buckets_) num_params += bucket->params.size();
  return num_params;
}

absl::Status BucketGroup::MissingGradients() const {
  // "Ready" means as often as in the first batch; in the first batch, at all.
  size_t num_ready = 0;
  std::string missing;
  for (const GradBucket* bucket : buckets_) {
    for (const ParameterPtr& p : bucket->params) {
      const auto seen = counts_.find(p.get());
      const auto golden = golden_counts_.find(p.get());
      const int wanted = golden == golden_counts_.end() ? 1 : golden->second;
      if (seen != counts_.end() && seen->second >= wanted) {
        ++num_ready;
      } else if (missing.empty()) {
        missing = p->name;
      }
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "bucket ", buckets_[0]->index, ": ", num_ready, " of ", NumParams(),
      " parameters have their gradient when the step ends, the first one missing is ", missing,
      "; with overlap_grad_reduce every parameter must get a gradient in the last microbatch"));
}

}  // namespace muster
