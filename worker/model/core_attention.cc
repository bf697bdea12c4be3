#include "worker/model/core_attention.h"

#include <cmath>
#include <tuple>

#include <ATen/ATen.h>

#include "worker/model/autograd_op.h"

namespace muster {
namespace {

// (N, C) rows -> (B, S, C), a view.
at::Tensor ToBatchSeq(const at::Tensor& rows, const TokenLayout& layout) {
  if (layout.seq_major) return rows.view({layout.seq, layout.batch, rows.size(1)}).transpose(0, 1);
  return rows.view({layout.batch, layout.seq, rows.size(1)});
}

// (B, S, heads, D) -> rows (N, heads * D); a copy only when memory order differs.
at::Tensor ToRows(const at::Tensor& x, const TokenLayout& layout) {
  const at::Tensor ordered = layout.seq_major ? x.transpose(0, 1) : x;
  return ordered.reshape({layout.rows(), x.size(2) * x.size(3)});
}

// (B, S, groups, D) -> (B, heads, S, D): each key serves the r queries of its group.
at::Tensor SpreadOverHeads(const at::Tensor& x, int64_t r) {
  if (r == 1) return x.transpose(1, 2);
  const auto size = x.sizes();
  return x.unsqueeze(3)
      .expand({size[0], size[1], size[2], r, size[3]})
      .reshape({size[0], size[1], size[2] * r, size[3]})
      .transpose(1, 2);
}

// The transpose of SpreadOverHeads: (B, heads, S, D) -> (B, S, groups, D), summed over r.
at::Tensor SumOverHeads(const at::Tensor& x, int64_t r) {
  const at::Tensor y = x.transpose(1, 2);
  if (r == 1) return y;
  return y.reshape({y.size(0), y.size(1), y.size(2) / r, r, y.size(3)}).sum(3);
}

}  // namespace

QkvHeads SplitQkv(const at::Tensor& qkv, const AttentionShape& shape, const TokenLayout& layout) {
  const int64_t r = shape.heads_a_group();
  const at::Tensor grouped =
      ToBatchSeq(qkv, layout).view({layout.batch, layout.seq, shape.groups, r + 2, shape.channels});
  return {grouped.narrow(3, 0, r).reshape({layout.batch, layout.seq, shape.heads, shape.channels}),
          grouped.select(3, r), grouped.select(3, r + 1)};
}

at::Tensor FlashCausalAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                                  const TokenLayout& layout, const RotaryTable* rotary) {
  const int64_t r = shape.heads_a_group();
  at::Tensor q, k, v, out, logsumexp, rows;
  {
    OpForward forward;
    QkvHeads heads = SplitQkv(qkv, shape, layout);
    if (rotary != nullptr) {
      heads.q = rotary->Rotate(heads.q);
      heads.k = rotary->Rotate(heads.k);
    }
    q = heads.q.transpose(1, 2);  // (B, heads, S, D)
    k = SpreadOverHeads(heads.k, r);
    v = SpreadOverHeads(heads.v, r);
    std::tie(out, logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(
        q, k, v, /*dropout_p=*/0.0, /*is_causal=*/true);
    rows = ToRows(out.transpose(1, 2), layout);
  }
  std::optional<RotaryTable> table;
  if (rotary != nullptr) table = *rotary;
  out = Detached(out);
  return RecordOp(
      rows, {qkv},
      [q, k, v, out, logsumexp, shape, layout, table, r](const TensorList& grads,
                                                         const NeedsGrad&) {
        const at::Tensor dout = ToBatchSeq(grads[0].contiguous(), layout)
                                    .view({layout.batch, layout.seq, shape.heads, shape.channels})
                                    .transpose(1, 2);
        auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, logsumexp, /*dropout_p=*/0.0, /*is_causal=*/true);
        at::Tensor dq_rows = dq.transpose(1, 2);  // (B, S, heads, D)
        at::Tensor dk_rows = SumOverHeads(dk, r);
        if (table.has_value()) {
          dq_rows = table->RotateBack(dq_rows);
          dk_rows = table->RotateBack(dk_rows);
        }
        at::Tensor dqkv =
            at::empty({layout.rows(), shape.groups * (r + 2) * shape.channels}, dq.options());
        const at::Tensor grouped =
            ToBatchSeq(dqkv, layout)
                .view({layout.batch, layout.seq, shape.groups, r + 2, shape.channels});
        grouped.narrow(3, 0, r).copy_(
            dq_rows.reshape({layout.batch, layout.seq, shape.groups, r, shape.channels}));
        grouped.select(3, r).copy_(dk_rows);
        grouped.select(3, r + 1).copy_(SumOverHeads(dv, r));
        return TensorList{dqkv};
      });
}

at::Tensor ExactAttention(const QkvHeads& heads, const AttentionShape& shape,
                          const TokenLayout& layout, const ExactAttentionOptions& options) {
  const int64_t r = shape.heads_a_group();
  const at::Tensor q = heads.q.transpose(1, 2);
  const at::Tensor k = SpreadOverHeads(heads.k, r), v = SpreadOverHeads(heads.v, r);
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.channels));
  const at::ScalarType dtype = q.scalar_type();
  at::Tensor mask = options.mask;
  if (!mask.defined()) {
    mask = at::ones({layout.seq, layout.seq}, q.options().dtype(at::kBool)).triu(1);
  }
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;  // (B, heads, S, S)
  at::Tensor probs =
      at::softmax(
          scores.to(dtype == at::kDouble ? at::kDouble : at::kFloat).masked_fill(mask, -10000.0),
          -1)
          .to(dtype);
  if (options.dropout > 0) {
    const double keep = 1 - options.dropout;
    probs = probs * at::empty_like(probs.detach()).bernoulli_(keep, options.generator).div_(keep);
  }
  return ToRows(at::matmul(probs, v).transpose(1, 2), layout);
}

}  // namespace muster
