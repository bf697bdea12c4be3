#include "worker/model/attention_layout.h"

#include <ATen/ATen.h>

namespace muster {

at::Tensor ToBatchSeq(const at::Tensor& rows, const TokenLayout& layout) {
  if (layout.seq_major) return rows.view({layout.seq, layout.batch, rows.size(1)}).transpose(0, 1);
  return rows.view({layout.batch, layout.seq, rows.size(1)});
}

at::Tensor ToHeads(const at::Tensor& rows, int64_t heads, const TokenLayout& layout) {
  return ToBatchSeq(rows, layout).view({layout.batch, layout.seq, heads, rows.size(1) / heads});
}

at::Tensor ToRows(const at::Tensor& x, const TokenLayout& layout) {
  const at::Tensor ordered = layout.seq_major ? x.transpose(0, 1) : x;
  return ordered.reshape({layout.rows(), x.size(2) * x.size(3)});
}

at::Tensor SpreadOverHeads(const at::Tensor& x, int64_t r) {
  if (r == 1) return x.transpose(1, 2);
  const auto size = x.sizes();
  return x.unsqueeze(3)
      .expand({size[0], size[1], size[2], r, size[3]})
      .reshape({size[0], size[1], size[2] * r, size[3]})
      .transpose(1, 2);
}

at::Tensor SumOverHeads(const at::Tensor& x, int64_t r) {
  const at::Tensor y = x.transpose(1, 2);
  if (r == 1) return y;
  return y.reshape({y.size(0), y.size(1), y.size(2) / r, r, y.size(3)}).sum(3);
}

at::Tensor Widened(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

QkvSlots SlotsOf(const at::Tensor& qkv, const AttentionShape& shape, const TokenLayout& layout) {
  const int64_t r = shape.heads_a_group();
  const at::Tensor grouped =
      ToBatchSeq(qkv, layout).view({layout.batch, layout.seq, shape.groups, r + 2, shape.channels});
  return {grouped.narrow(3, 0, r), grouped.select(3, r), grouped.select(3, r + 1)};
}

void CopyUnlessThere(const at::Tensor& from, const at::Tensor& to) {
  if (from.data_ptr() != to.data_ptr()) to.copy_(from);
}

}  // namespace muster
