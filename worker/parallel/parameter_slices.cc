#include "worker/parallel/parameter_slices.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

at::Tensor Box(const at::Tensor& tensor, const std::vector<int64_t>& begin,
               const std::vector<int64_t>& size) {
  at::Tensor box = tensor;
  for (size_t dim = 0; dim < size.size(); ++dim) {
    box = box.narrow(static_cast<int64_t>(dim), begin[dim], size[dim]);
  }
  return box;
}

}  // namespace

std::vector<ParameterSlice> ParameterSlices(const Parameter& parameter) {
  const ParameterSlice all = {.local_begin = std::vector<int64_t>(parameter.global_shape.size(), 0),
                              .size = parameter.data.sizes().vec(),
                              .global_offset = parameter.global_offset};
  const int64_t stride = parameter.partition_stride;
  if (!parameter.tensor_model_parallel || stride == 1) return {all};
  const int dim = parameter.partition_dim;
  MUSTER_CHECK_MSG(all.size[dim] % stride == 0,
                   absl::StrCat(parameter.name, ": a shard holds as much of every block"));
  const int64_t part = all.size[dim] / stride, block = parameter.global_shape[dim] / stride;
  std::vector<ParameterSlice> slices(stride, all);
  for (int64_t i = 0; i < stride; ++i) {
    slices[i].local_begin[dim] = i * part;
    slices[i].size[dim] = part;
    slices[i].global_offset[dim] += i * block;
  }
  return slices;
}

at::Tensor ShardOf(const at::Tensor& whole, const Parameter& parameter) {
  at::NoGradGuard no_grad;
  at::Tensor shard = at::empty(parameter.data.sizes(), whole.options().requires_grad(false));
  for (const ParameterSlice& slice : ParameterSlices(parameter)) {
    Box(shard, slice.local_begin, slice.size).copy_(Box(whole, slice.global_offset, slice.size));
  }
  return shard;
}

void CopyShardInto(const at::Tensor& shard, const Parameter& parameter, const at::Tensor& whole) {
  at::NoGradGuard no_grad;
  for (const ParameterSlice& slice : ParameterSlices(parameter)) {
    Box(whole, slice.global_offset, slice.size).copy_(Box(shard, slice.local_begin, slice.size));
  }
}

}  // namespace muster
