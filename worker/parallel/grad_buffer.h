// One flat buffer that holds the gradients of all parameters of one kind, cut into buckets
// (reference 6.2). Each parameter's main_grad is a view into it.
//
// The buffer is never filled with zeros as a whole: ZeroGrads marks the parameters, the first
// contribution of a step overwrites, and FillUntouched writes zeros where none came.
// Thread-safety: one thread (the rank's).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/bucket_layout.h"
#include "worker/parallel/parameter.h"

namespace muster {

// What a buffer's parameters have in common.
struct GradBufferKey {
  at::ScalarType param_dtype = at::kFloat;
  at::ScalarType grad_dtype = at::kFloat;
  bool is_expert = false;
  auto operator<=>(const GradBufferKey&) const = default;
};

struct GradBucket {
  int index = 0;                     // in its buffer; 0 is the end of the model
  at::Tensor data;                   // (bucket's elements), padding included; a view
  std::vector<ParameterPtr> params;  // in buffer order
};

class GradBuffer {
 public:
  // `params`, in registration order, get their main_grad here; all on one device.
  GradBuffer(GradBufferKey key, std::vector<ParameterPtr> params,
             const BucketLayoutOptions& options);
  ~GradBuffer();  // takes main_grad back
  GradBuffer(const GradBuffer&) = delete;
  GradBuffer& operator=(const GradBuffer&) = delete;

  const GradBufferKey& key() const { return key_; }
  const BucketLayout& layout() const { return layout_; }
  const std::vector<ParameterPtr>& params() const { return params_; }  // in registration order
  const at::Tensor& data() const { return data_; }                     // (layout.numel), grad dtype
  const std::vector<GradBucket>& buckets() const { return buckets_; }

  void ZeroGrads();

 private:
  const GradBufferKey key_;
  const std::vector<ParameterPtr> params_;
  const BucketLayout layout_;
  at::Tensor data_;
  std::vector<GradBucket> buckets_;
};

// Writes zeros for the parameters that no contribution reached since ZeroGrads.
void FillUntouched(const GradBucket& bucket);

}  // namespace muster
