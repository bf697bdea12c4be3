#include "worker/model/core_attention.h"

#include <cmath>

#include <ATen/ATen.h>

#include "worker/model/attention_piece.h"
#include "worker/ops/autograd_op.h"

namespace muster {
QkvHeads SplitQkv(const at::Tensor& qkv, const AttentionShape& shape, const TokenLayout& layout) {
  const QkvSlots slots = SlotsOf(qkv, shape, layout);
  return {slots.q.reshape({layout.batch, layout.seq, shape.heads, shape.channels}), slots.k,
          slots.v};
}

bool FlashAttentionTakes(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.is_cpu() || DeviceAttentionTakes(qkv, shape.channels);
}

at::Tensor FlashCausalAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                                  const TokenLayout& layout, const RotaryTable* rotary) {
  const Visible causal{.past = 0};
  AttentionTensors heads;
  PieceResult whole;
  at::Tensor rows;
  {
    OpForward forward;
    const QkvHeads split = SplitQkv(qkv, shape, layout);
    heads = {split.q, split.k, split.v};
    if (rotary != nullptr) {
      heads.q = rotary->Rotate(heads.q);
      heads.k = rotary->Rotate(heads.k);
    }
    if (BlockedAttentionTakes(heads)) {
      rows = at::empty({layout.rows(), shape.heads * shape.channels}, qkv.options());
      whole = AttendPiece(heads, causal, {}, ToHeads(Detached(rows), shape.heads, layout));
    } else {
      whole = AttendPiece(heads, causal, {});
      rows = ToRows(whole.out, layout);
      // Rows may be a view of what backward reads: autograd must not find one through the other.
      whole.out = Detached(whole.out);
    }
  }
  std::optional<RotaryTable> table;
  if (rotary != nullptr) table = *rotary;
  return RecordOp(
      rows, {qkv}, [heads, whole, shape, layout, table](const TensorList& grads, const NeedsGrad&) {
        const int64_t r = shape.heads_a_group();
        const at::Tensor dout = ToHeads(grads[0].contiguous(), shape.heads, layout);
        const at::Tensor dqkv =
            at::empty({layout.rows(), shape.groups * (r + 2) * shape.channels}, grads[0].options());
        const QkvSlots slots = SlotsOf(dqkv, shape, layout);
        // Without rotation in between, straight into dqkv where strides allow.
        const bool direct = !table.has_value();
        AttentionTensors d = AttendPieceBackward(
            heads, {.past = 0}, {}, whole.kept, {.out = whole.out, .lse = whole.lse, .dout = dout},
            {direct && r == 1 ? slots.q.squeeze(3) : at::Tensor(), direct ? slots.k : at::Tensor(),
             slots.v});
        if (table.has_value()) {
          d.q = table->RotateBack(d.q);
          d.k = table->RotateBack(d.k);
        }
        CopyUnlessThere(d.q.reshape(slots.q.sizes()), slots.q);
        CopyUnlessThere(d.k, slots.k);
        CopyUnlessThere(d.v, slots.v);
        return TensorList{dqkv};
      });
}

at::Tensor ExactAttention(const QkvHeads& heads, const AttentionShape& shape,
                          const TokenLayout& layout, const ExactAttentionOptions& options) {
  const int64_t r = shape.heads_a_group();
  const at::Tensor q = Widened(heads.q.transpose(1, 2));
  const at::Tensor k = Widened(SpreadOverHeads(heads.k, r));
  const at::Tensor v = Widened(SpreadOverHeads(heads.v, r));
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
  return ToRows(at::matmul(probs, v).transpose(1, 2), layout).to(heads.q.scalar_type());
}

}  // namespace muster
