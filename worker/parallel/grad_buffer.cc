#include "worker/parallel/grad_buffer.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "common/base/check.h"

namespace muster {
namespace {

BucketLayout LayoutOf(const std::vector<ParameterPtr>& params, const BucketLayoutOptions& options) {
  std::vector<BucketLayoutParam> sizes;
  sizes.reserve(params.size());
  for (const ParameterPtr& p : params)
    sizes.push_back({.numel = p->data.numel(), .shared_embedding = p->shared_embedding});
  return ComputeBucketLayout(sizes, options);
}

}  // namespace

GradBuffer::GradBuffer(GradBufferKey key, std::vector<ParameterPtr> params,
                       const BucketLayoutOptions& options)
    : key_(key), params_(std::move(params)), layout_(LayoutOf(params_, options)) {
  MUSTER_CHECK(!params_.empty());
  // Zeros matter for the padding only, which nothing writes later.
  data_ = at::zeros({layout_.numel},
                    at::TensorOptions(params_[0]->data.device()).dtype(key_.grad_dtype));
  for (size_t i = 0; i < params_.size(); ++i) {
    Parameter& p = *params_[i];
    p.main_grad =
        data_.narrow(0, layout_.params[i].begin, layout_.params[i].size()).view(p.data.sizes());
    p.main_grad_is_zero = true;
  }
  for (const BucketSpan& span : layout_.buckets) {
    GradBucket bucket{.index = static_cast<int>(buckets_.size()),
                      .data = data_.narrow(0, span.range.begin, span.range.size())};
    for (int i : span.params) bucket.params.push_back(params_[i]);
    buckets_.push_back(std::move(bucket));
  }
}

GradBuffer::~GradBuffer() {
  for (const ParameterPtr& p : params_) {
    p->main_grad = at::Tensor();
    p->main_grad_squares.reset();
  }
}

void GradBuffer::ZeroGrads() {
  for (const ParameterPtr& p : params_) {
    p->main_grad_is_zero = true;
    p->main_grad_squares.reset();
  }
}

void FillUntouched(const GradBucket& bucket) {
  at::NoGradGuard no_grad;
  for (const ParameterPtr& p : bucket.params) {
    if (!p->main_grad_is_zero) continue;
    p->main_grad.zero_();
    p->main_grad_is_zero = false;
  }
}

}  // namespace muster
