#include "worker/model/core_attention.h"

#include <cmath>
#include <tuple>

#include <ATen/ATen.h>

#include "worker/ops/autograd_op.h"
#include "worker/model/blocked_attention.h"
#include "worker/model/device_attention.h"

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

namespace {

// What backward reads: rotated heads, the output (B, S, heads, D), ln sum exp of the scores.
struct Attended {
  AttentionTensors heads;
  enum class Kernel { kBlocked, kLibTorchCpu, kDevice } kernel = Kernel::kLibTorchCpu;
  at::Tensor out, lse;
  DeviceAttended device;  // kDevice
};

Attended::Kernel KernelFor(const AttentionTensors& heads) {
  if (!heads.q.is_cpu()) return Attended::Kernel::kDevice;
  return BlockedAttentionTakes(heads) ? Attended::Kernel::kBlocked : Attended::Kernel::kLibTorchCpu;
}

HeadTensors ByHead(const AttentionTensors& heads, int64_t r) {
  return {heads.q.transpose(1, 2), SpreadOverHeads(heads.k, r), SpreadOverHeads(heads.v, r)};
}

// CPUs multiply fp16 element by element: attention on them is computed in fp32 and rounded once.
at::Tensor Widened(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}
HeadTensors Widened(const HeadTensors& x) { return {Widened(x.q), Widened(x.k), Widened(x.v)}; }

// LibTorch's flash kernel, for what BlockedAttention does not take.
void LibTorchAttention(Attended& a, int64_t r) {
  at::Tensor out;
  const HeadTensors in = Widened(ByHead(a.heads, r));
  std::tie(out, a.lse) = at::_scaled_dot_product_flash_attention_for_cpu(
      in.q, in.k, in.v, /*dropout_p=*/0.0, /*is_causal=*/true);
  a.out = out.transpose(1, 2).to(a.heads.q.scalar_type());
}

AttentionTensors LibTorchAttentionBackward(const Attended& a, const at::Tensor& dout, int64_t r) {
  const HeadTensors in = Widened(ByHead(a.heads, r));
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      Widened(dout.transpose(1, 2)), in.q, in.k, in.v, Widened(a.out.transpose(1, 2)), a.lse,
      /*dropout_p=*/0.0, /*is_causal=*/true);
  const at::ScalarType dtype = dout.scalar_type();
  return {dq.transpose(1, 2).to(dtype), SumOverHeads(dk, r).to(dtype),
          SumOverHeads(dv, r).to(dtype)};
}

void OnDevice(Attended& a, int64_t r) {
  a.device = DeviceAttention(ByHead(a.heads, r));
  a.out = a.device.out.transpose(1, 2);
}

AttentionTensors OnDeviceBackward(const Attended& a, const at::Tensor& dout, int64_t r) {
  const HeadTensors d = DeviceAttentionBackward(ByHead(a.heads, r), a.device, dout.transpose(1, 2));
  return {d.q.transpose(1, 2), SumOverHeads(d.k, r), SumOverHeads(d.v, r)};
}

void CopyUnlessThere(const at::Tensor& from, const at::Tensor& to) {
  if (from.data_ptr() != to.data_ptr()) to.copy_(from);
}

// (N, heads * D) rows -> (B, S, heads, D), a view.
at::Tensor ToHeads(const at::Tensor& rows, const AttentionShape& shape, const TokenLayout& layout) {
  return ToBatchSeq(rows, layout).view({layout.batch, layout.seq, shape.heads, shape.channels});
}

}  // namespace

bool FlashAttentionTakes(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.is_cpu() || DeviceAttentionTakes(qkv, shape.channels);
}

at::Tensor FlashCausalAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                                  const TokenLayout& layout, const RotaryTable* rotary) {
  const int64_t r = shape.heads_a_group();
  Attended a;
  at::Tensor rows;
  {
    OpForward forward;
    QkvHeads heads = SplitQkv(qkv, shape, layout);
    if (rotary != nullptr) {
      heads.q = rotary->Rotate(heads.q);
      heads.k = rotary->Rotate(heads.k);
    }
    a.heads = {heads.q, heads.k, heads.v};
    a.kernel = KernelFor(a.heads);
    if (a.kernel == Attended::Kernel::kBlocked) {
      rows = at::empty({layout.rows(), shape.heads * shape.channels}, qkv.options());
      a.out = ToHeads(Detached(rows), shape, layout);
      a.lse = BlockedAttention(a.heads, a.out);
    } else if (a.kernel == Attended::Kernel::kDevice) {
      OnDevice(a, r);
      rows = ToRows(a.out, layout);
      // The rows are a view of what backward reads: autograd must not find one through the other.
      a.device.out = Detached(a.device.out);
      a.out = at::Tensor();
    } else {
      LibTorchAttention(a, r);
      rows = ToRows(a.out, layout);
      a.out = Detached(a.out);
    }
  }
  std::optional<RotaryTable> table;
  if (rotary != nullptr) table = *rotary;
  return RecordOp(
      rows, {qkv}, [a, shape, layout, table, r](const TensorList& grads, const NeedsGrad&) {
        const at::Tensor dout = ToHeads(grads[0].contiguous(), shape, layout);
        at::Tensor dqkv =
            at::empty({layout.rows(), shape.groups * (r + 2) * shape.channels}, grads[0].options());
        const at::Tensor grouped =
            ToBatchSeq(dqkv, layout)
                .view({layout.batch, layout.seq, shape.groups, r + 2, shape.channels});
        const at::Tensor dq_slot = grouped.narrow(3, 0, r);
        const at::Tensor dk_slot = grouped.select(3, r), dv_slot = grouped.select(3, r + 1);
        AttentionTensors d;
        if (a.kernel == Attended::Kernel::kBlocked) {
          // Without rotation in between, straight into dqkv where strides allow.
          const bool direct = !table.has_value();
          d.q = direct && r == 1 ? dq_slot.squeeze(3) : at::empty(dout.sizes(), dqkv.options());
          d.k = direct ? dk_slot : at::empty(dk_slot.sizes(), dqkv.options());
          d.v = dv_slot;
          BlockedAttentionBackward(a.heads, a.out, a.lse, dout, d);
        } else if (a.kernel == Attended::Kernel::kDevice) {
          d = OnDeviceBackward(a, dout, r);
        } else {
          d = LibTorchAttentionBackward(a, dout, r);
        }
        if (table.has_value()) {
          d.q = table->RotateBack(d.q);
          d.k = table->RotateBack(d.k);
        }
        CopyUnlessThere(d.q.reshape({layout.batch, layout.seq, shape.groups, r, shape.channels}),
                        dq_slot);
        CopyUnlessThere(d.k, dk_slot);
        CopyUnlessThere(d.v, dv_slot);
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
