#include "common/ckpt/reshard.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"

namespace muster {
namespace {

// Row-major index inside the box of the element with global coordinates `at`.
int64_t IndexInBox(const SliceBox& box, const std::vector<int64_t>& at) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * box.shape[d] + (at[d] - box.offset[d]);
  return index;
}

// The same for a run of `count` elements that begins at flat indices `source` and `target` of the
// boxes: cut to what both ranges hold.
int64_t CopyClipped(const SliceBox& source, int64_t source_index, const SliceBox& target,
                    int64_t target_index, int64_t count, const CopyRun& copy) {
  const int64_t skip =
      std::max<int64_t>({0, source.flat_begin - source_index, target.flat_begin - target_index});
  const int64_t end =
      std::min({count, source.flat_end - source_index, target.flat_end - target_index});
  if (skip >= end) return 0;
  copy(source_index + skip - source.flat_begin, target_index + skip - target.flat_begin,
       end - skip);
  return end - skip;
}

}  // namespace

int64_t ForEachCommonRun(const SliceBox& source, const SliceBox& target, const CopyRun& copy) {
  const size_t dims = source.shape.size();
  MUSTER_CHECK(target.shape.size() == dims);
  std::vector<int64_t> begin(dims), end(dims);
  for (size_t d = 0; d < dims; ++d) {
    begin[d] = std::max(source.offset[d], target.offset[d]);
    end[d] = std::min(source.offset[d] + source.shape[d], target.offset[d] + target.shape[d]);
    if (begin[d] >= end[d]) return 0;
  }
  // Trailing dims that both boxes hold whole are contiguous in both: one run covers them, and the
  // common part of the dim before.
  size_t outer = dims;
  int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= end[outer] - begin[outer];
    const int64_t extent = end[outer] - begin[outer];
    if (extent != source.shape[outer] || extent != target.shape[outer]) break;
  }
  int64_t copied = 0;
  std::vector<int64_t> at = begin;
  while (true) {
    copied +=
        CopyClipped(source, IndexInBox(source, at), target, IndexInBox(target, at), run, copy);
    size_t d = outer;
    while (d > 0) {
      --d;
      if (++at[d] < end[d]) break;
      at[d] = begin[d];
      if (d == 0) return copied;
    }
    if (outer == 0) return copied;
  }
}

}  // namespace muster
