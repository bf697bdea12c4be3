#include "worker/model/attention_piece.h"

#include <cmath>
#include <tuple>

#include <ATen/ATen.h>

#include "common/base/check.h"
#include "worker/model/attention_layout.h"

namespace muster {
namespace {

int64_t HeadsAGroup(const AttentionTensors& in) { return in.q.size(2) / in.k.size(2); }

HeadTensors ByHead(const AttentionTensors& in) {
  const int64_t r = HeadsAGroup(in);
  return {in.q.transpose(1, 2), SpreadOverHeads(in.k, r), SpreadOverHeads(in.v, r)};
}
HeadTensors WidenedByHead(const AttentionTensors& in) {
  const HeadTensors x = ByHead(in);
  return {Widened(x.q), Widened(x.k), Widened(x.v)};
}
// Gradients by head -> shaped as `in`, in its type.
AttentionTensors FromHeads(const HeadTensors& d, const AttentionTensors& in) {
  const at::ScalarType dtype = in.q.scalar_type();
  const int64_t r = HeadsAGroup(in);
  return {d.q.transpose(1, 2).to(dtype), SumOverHeads(d.k, r).to(dtype),
          SumOverHeads(d.v, r).to(dtype)};
}

AttentionTensors KeysOf(const AttentionTensors& in, int64_t first, int64_t count) {
  return {in.q, in.k.narrow(1, first, count), in.v.narrow(1, first, count)};
}

enum class Kernel { kBlocked, kLibTorchCpu, kDevice };

Kernel KernelFor(const AttentionTensors& in, int64_t past) {
  if (!in.q.is_cpu()) return Kernel::kDevice;
  return BlockedAttentionTakes(in, past) ? Kernel::kBlocked : Kernel::kLibTorchCpu;
}

// BlockedAttention's count of keys that a query sees besides those by its own row.
int64_t PastOf(const AttentionTensors& in, const Visible& visible) {
  return visible.past.value_or(in.k.size(1));
}

// The other kernels know squares below the diagonal and full rectangles: two pieces then.
bool MustSplit(const Visible& visible) { return visible.past.value_or(0) > 0; }

PieceResult FlashPiece(const AttentionTensors& in, bool causal) {
  PieceResult result;
  at::Tensor out;
  if (!in.q.is_cpu()) {
    DeviceAttended a = DeviceAttention(ByHead(in), causal);
    result.out = a.out.transpose(1, 2);
    result.lse = DevicePlainLse(a, in.q.size(1));
    a.out = a.lse = at::Tensor();
    result.kept.device = std::move(a);
    return result;
  }
  const HeadTensors x = WidenedByHead(in);
  std::tie(out, result.lse) =
      at::_scaled_dot_product_flash_attention_for_cpu(x.q, x.k, x.v, /*dropout_p=*/0.0, causal);
  result.out = out.transpose(1, 2).to(in.q.scalar_type());
  return result;
}

AttentionTensors FlashPieceBackward(const AttentionTensors& in, bool causal, const PieceKept& kept,
                                    const PieceOutput& whole) {
  if (!in.q.is_cpu()) {
    DeviceAttended a = kept.device;
    a.out = whole.out.transpose(1, 2);
    a.lse = DeviceKernelLse(kept.device, whole.lse);
    a.max_q = in.q.size(1);
    a.max_k = in.k.size(1);
    return FromHeads(DeviceAttentionBackward(ByHead(in), a, whole.dout.transpose(1, 2), causal),
                     in);
  }
  const HeadTensors x = WidenedByHead(in);
  HeadTensors d;
  std::tie(d.q, d.k, d.v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      Widened(whole.dout.transpose(1, 2)), x.q, x.k, x.v, Widened(whole.out.transpose(1, 2)),
      whole.lse, /*dropout_p=*/0.0, causal);
  return FromHeads(d, in);
}

PieceResult FlashInTwo(const AttentionTensors& in, int64_t past) {
  JoinedAttention joined;
  PieceResult before = FlashPiece(KeysOf(in, 0, past), /*causal=*/false);
  joined.Add(before);
  joined.Add(FlashPiece(KeysOf(in, past, in.q.size(1)), /*causal=*/true));
  return {joined.out().to(in.q.scalar_type()), joined.lse(), std::move(before.kept)};
}

AttentionTensors FlashInTwoBackward(const AttentionTensors& in, int64_t past, const PieceKept& kept,
                                    const PieceOutput& whole) {
  AttentionTensors d = FlashPieceBackward(KeysOf(in, 0, past), /*causal=*/false, kept, whole);
  const AttentionTensors own =
      FlashPieceBackward(KeysOf(in, past, in.q.size(1)), /*causal=*/true, kept, whole);
  return {d.q.add_(own.q), at::cat({d.k, own.k}, 1), at::cat({d.v, own.v}, 1)};
}

// Scores and what hides them, by head.
struct Scores {
  HeadTensors x;
  double scale = 1;
  at::Tensor hidden;  // undefined: nothing
  at::Tensor scores;  // (B, heads, queries, keys) fp32 (fp64), hidden ones -10000 as in Megatron
};

Scores ScoresOf(const AttentionTensors& in, const Visible& visible) {
  Scores s{.x = WidenedByHead(in),
           .scale = 1.0 / std::sqrt(static_cast<double>(in.q.size(3))),
           .hidden = visible.hidden};
  if (!s.hidden.defined() && visible.past.has_value()) {
    s.hidden = at::ones({in.q.size(1), in.k.size(1)}, in.q.options().dtype(at::kBool))
                   .triu(*visible.past + 1);
  }
  const at::ScalarType sums = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  s.scores = (at::matmul(s.x.q, s.x.k.transpose(2, 3)) * s.scale).to(sums);
  if (s.hidden.defined()) s.scores = s.scores.masked_fill(s.hidden, -10000.0);
  return s;
}

// x where it was not dropped, over the share that is kept.
at::Tensor Dropped(const at::Tensor& x, const at::Tensor& kept, double dropout) {
  return kept.defined() ? x.mul(kept).div_(1 - dropout) : x;
}

PieceResult ExactPiece(const AttentionTensors& in, const Visible& visible,
                       const PieceOptions& options) {
  const Scores s = ScoresOf(in, visible);
  PieceResult result;
  result.lse = at::logsumexp(s.scores, -1);
  at::Tensor probs = at::exp(s.scores - result.lse.unsqueeze(-1)).to(s.x.q.scalar_type());
  if (options.dropout > 0) {
    std::vector<int64_t> drawn = probs.sizes().vec();
    drawn[3] = std::max(options.drawn_keys, drawn[3]);
    result.kept.dropped = at::empty(drawn, probs.options())
                              .bernoulli_(1 - options.dropout, options.generator)
                              .narrow(3, 0, probs.size(3))
                              .to(at::kBool);
  }
  probs = Dropped(probs, result.kept.dropped, options.dropout);
  result.out = at::matmul(probs, s.x.v).transpose(1, 2).to(in.q.scalar_type());
  return result;
}

// With p = exp(score - lse), the probability among all keys:
//   dv = pd^T dout,  dp = dropped(dout v^T),  ds = p (dp - sum(dout out)),  dq = ds k,  dk = ds^T q
AttentionTensors ExactPieceBackward(const AttentionTensors& in, const Visible& visible,
                                    const PieceOptions& options, const PieceKept& kept,
                                    const PieceOutput& whole) {
  const Scores s = ScoresOf(in, visible);
  const at::ScalarType dtype = s.x.q.scalar_type(), sums = s.scores.scalar_type();
  const at::Tensor dout = Widened(whole.dout.transpose(1, 2));
  const at::Tensor p = at::exp(s.scores - whole.lse.unsqueeze(-1));
  const at::Tensor delta =
      (dout.to(sums) * whole.out.transpose(1, 2).to(sums)).sum(-1, /*keepdim=*/true);
  const at::Tensor dp =
      Dropped(at::matmul(dout, s.x.v.transpose(2, 3)).to(sums), kept.dropped, options.dropout);
  at::Tensor ds = (p * (dp - delta)).mul_(s.scale);
  if (s.hidden.defined()) ds = ds.masked_fill(s.hidden, 0);
  ds = ds.to(dtype);
  const at::Tensor probs = Dropped(p.to(dtype), kept.dropped, options.dropout);
  return FromHeads({at::matmul(ds, s.x.k), at::matmul(ds.transpose(2, 3), s.x.q),
                    at::matmul(probs.transpose(2, 3), dout)},
                   in);
}

at::Tensor SlotOr(const at::Tensor& slot, const at::Tensor& like) {
  return slot.defined() ? slot : at::empty(like.sizes(), like.options());
}

}  // namespace

PieceResult AttendPiece(const AttentionTensors& in, const Visible& visible,
                        const PieceOptions& options, const at::Tensor& slot) {
  if (options.exact) return ExactPiece(in, visible, options);
  MUSTER_CHECK_MSG(!visible.hidden.defined() && options.dropout == 0,
                   "masks and dropout need exact attention");
  const int64_t past = PastOf(in, visible);
  if (KernelFor(in, past) == Kernel::kBlocked) {
    PieceResult result{.out = SlotOr(slot, in.q)};
    result.lse = BlockedAttention(in, result.out, past);
    return result;
  }
  if (MustSplit(visible)) return FlashInTwo(in, past);
  return FlashPiece(in, /*causal=*/visible.past.has_value());
}

AttentionTensors AttendPieceBackward(const AttentionTensors& in, const Visible& visible,
                                     const PieceOptions& options, const PieceKept& kept,
                                     const PieceOutput& whole, const AttentionTensors& slots) {
  if (options.exact) return ExactPieceBackward(in, visible, options, kept, whole);
  const int64_t past = PastOf(in, visible);
  if (KernelFor(in, past) == Kernel::kBlocked) {
    const AttentionTensors d = {SlotOr(slots.q, in.q), SlotOr(slots.k, in.k),
                                SlotOr(slots.v, in.v)};
    BlockedAttentionBackward(in, {.out = whole.out, .dout = whole.dout, .lse = whole.lse}, d, past);
    return d;
  }
  if (MustSplit(visible)) return FlashInTwoBackward(in, past, kept, whole);
  return FlashPieceBackward(in, /*causal=*/visible.past.has_value(), kept, whole);
}

void JoinedAttention::Add(const PieceResult& piece, int64_t first_query) {
  if (!out_.defined()) {
    MUSTER_CHECK_MSG(first_query == 0, "the first piece has all queries");
    const at::ScalarType sums = piece.out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    out_ = piece.out.to(sums);
    lse_ = piece.lse.contiguous();
    return;
  }
  const int64_t queries = piece.out.size(1);
  const at::Tensor out = out_.narrow(1, first_query, queries);
  const at::Tensor lse = lse_.narrow(2, first_query, queries);
  const at::Tensor sum = at::logaddexp(lse, piece.lse);
  // (B, heads, queries) -> (B, queries, heads, 1)
  const auto share = [&](const at::Tensor& part) {
    return at::exp(part - sum).transpose(1, 2).unsqueeze(3);
  };
  out.mul_(share(lse)).addcmul_(piece.out.to(out.scalar_type()), share(piece.lse));
  lse.copy_(sum);
}

}  // namespace muster
