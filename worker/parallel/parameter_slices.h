// Where a tensor-parallel shard of a parameter lies in the whole tensor, as boxes: what checkpoints
// write and read, and how a shard is cut out of a full tensor. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/parameter.h"

namespace muster {

// One box: `size` elements a dim, at `local_begin` in the shard and at `global_offset` in the
// whole.
struct ParameterSlice {
  std::vector<int64_t> local_begin, size, global_offset;
};

// partition_stride boxes (one when it is 1, or when the parameter is not split over tp), in the
// order of the shard. They cover the shard without overlap; the boxes of all tp ranks cover the
// whole.
std::vector<ParameterSlice> ParameterSlices(const Parameter& parameter);

// The shard that `parameter` names, cut out of `whole` (global_shape): contiguous, of data's shape.
at::Tensor ShardOf(const at::Tensor& whole, const Parameter& parameter);
// The opposite: writes `shard` (of data's shape) to its place in `whole` (global_shape).
void CopyShardInto(const at::Tensor& shard, const Parameter& parameter, const at::Tensor& whole);

}  // namespace muster
