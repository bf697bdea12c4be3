#include "worker/model/cp_attention.h"

#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "worker/model/attention_layout.h"
#include "worker/model/cp_gather.h"
#include "worker/model/cp_heads.h"
#include "worker/model/cp_ring.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

// Null: not that way. First the all-to-all, then one of the others over what it leaves apart.
struct Ways {
  Communicator* a2a = nullptr;
  Communicator* ring = nullptr;
  Communicator* gather = nullptr;
};
Ways WaysOf(const ContextPlan& plan) {
  switch (plan.comm_type) {
    case CpCommType::kP2p:
      return {.ring = plan.cp.comm};
    case CpCommType::kAllGather:
      return {.gather = plan.cp.comm};
    case CpCommType::kA2a:
      return {.a2a = plan.cp.comm};
    case CpCommType::kA2aP2p:
      return {.a2a = plan.cp.a2a, .ring = plan.cp.p2p};
  }
  return {};
}

Visible VisibleOnOneRank(const ContextOptions& options) {
  if (options.hidden.defined()) return {.hidden = options.hidden};
  return {.past = 0};
}

ContextKept AttendOnOneRank(const ContextHeads& own, const ContextOptions& options,
                            const at::Tensor& out) {
  PieceResult piece =
      AttendPiece({own.q, own.kv[0], own.kv[1]}, VisibleOnOneRank(options), options.piece, out);
  CopyUnlessThere(piece.out, out);
  return {own.q, own.kv, out, piece.lse, {std::move(piece.kept)}};
}

ContextGrads AttendOnOneRankBackward(const ContextKept& kept, const ContextOptions& options,
                                     const at::Tensor& dout) {
  const at::Tensor dkv = at::empty_like(kept.kv);
  const AttentionTensors grads = AttendPieceBackward(
      {kept.q, kept.kv[0], kept.kv[1]}, VisibleOnOneRank(options), options.piece, kept.pieces[0],
      {.out = kept.out, .lse = kept.lse, .dout = dout}, {{}, dkv[0], dkv[1]});
  CopyUnlessThere(grads.k, dkv[0]);
  CopyUnlessThere(grads.v, dkv[1]);
  return {grads.q, dkv};
}

// Over the ranks that still have different tokens.
ContextKept AttendApart(const Ways& ways, const ContextHeads& own, const ContextOptions& options,
                        const at::Tensor& out) {
  if (ways.ring != nullptr) return RingAttention(*ways.ring, own, options, out);
  if (ways.gather != nullptr) return GatherAttention(*ways.gather, own, options, out);
  return AttendOnOneRank(own, options, out);
}
ContextGrads AttendApartBackward(const Ways& ways, const ContextKept& kept,
                                 const ContextOptions& options, const at::Tensor& dout) {
  if (ways.ring != nullptr) return RingAttentionBackward(*ways.ring, kept, options, dout);
  if (ways.gather != nullptr) return GatherAttentionBackward(*ways.gather, kept, options, dout);
  return AttendOnOneRankBackward(kept, options, dout);
}

// x (.., B, S, heads, D) -> the sizes of n times its tokens, 1 / n of its heads.
at::Tensor EmptySequence(const at::Tensor& x, int64_t n) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 3] *= n;
  sizes[sizes.size() - 2] /= n;
  return at::empty(sizes, x.options());
}
// And back.
at::Tensor EmptyHeads(const at::Tensor& x, int64_t n) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 3] /= n;
  sizes[sizes.size() - 2] *= n;
  return at::empty(sizes, x.options());
}

// With an all-to-all, `hidden` has the rows of its group from here on.
ContextKept Attend(const Ways& ways, const ContextHeads& own, ContextOptions& options,
                   const at::Tensor& out) {
  if (ways.a2a == nullptr) return AttendApart(ways, own, options, out);
  const int64_t n = ways.a2a->size();
  if (options.hidden.defined()) options.hidden = GatherMaskRows(*ways.a2a, options.hidden);
  ContextHeads whole{EmptySequence(own.q, n), EmptySequence(own.kv, n)};
  HeadsToSequence(*ways.a2a, {own.q, own.kv[0], own.kv[1]}, {whole.q, whole.kv[0], whole.kv[1]});
  ContextKept kept = AttendApart(ways, whole, options, at::empty_like(whole.q));
  SequenceToHeads(*ways.a2a, {kept.out}, {out});
  return kept;
}

ContextGrads AttendBackward(const Ways& ways, const ContextKept& kept,
                            const ContextOptions& options, const at::Tensor& dout) {
  if (ways.a2a == nullptr) return AttendApartBackward(ways, kept, options, dout);
  const int64_t n = ways.a2a->size();
  const at::Tensor whole_dout = at::empty_like(kept.q);
  HeadsToSequence(*ways.a2a, {dout}, {whole_dout});
  const ContextGrads whole = AttendApartBackward(ways, kept, options, whole_dout);
  const ContextGrads own{EmptyHeads(whole.q, n), EmptyHeads(whole.kv, n)};
  SequenceToHeads(*ways.a2a, {whole.q, whole.kv[0], whole.kv[1]}, {own.q, own.kv[0], own.kv[1]});
  return own;
}

// Like k, dense, twice: K and V of one message.
at::Tensor EmptyKeys(const at::Tensor& k) {
  std::vector<int64_t> sizes = k.sizes().vec();
  sizes.insert(sizes.begin(), 2);
  return at::empty(sizes, k.options());
}

}  // namespace

at::Tensor ContextAttentionOp(const at::Tensor& qkv, const AttentionShape& shape,
                              const TokenLayout& layout, const RotaryTable* rotary,
                              const ContextPlan& plan) {
  const Ways ways = WaysOf(plan);
  ContextOptions options = plan.options;
  ContextKept kept;
  at::Tensor rows;
  {
    OpForward forward;
    const QkvHeads split = SplitQkv(qkv, shape, layout);
    // Copies, so that qkv itself is not kept.
    ContextHeads own{.kv = EmptyKeys(split.k)};
    if (rotary != nullptr) {
      own.q = rotary->Rotate(split.q);
      rotary->RotateInto(split.k, own.kv[0]);
    } else {
      own.q = split.q.contiguous();
      own.kv[0].copy_(split.k);
    }
    own.kv[1].copy_(split.v);
    rows = at::empty({layout.rows(), shape.heads * shape.channels}, qkv.options());
    kept = Attend(ways, own, options, ToHeads(Detached(rows), shape.heads, layout));
  }
  std::optional<RotaryTable> table;
  if (rotary != nullptr) table = *rotary;
  return RecordOp(
      rows, {qkv},
      [ways, kept, options, shape, layout, table](const TensorList& grads, const NeedsGrad&) {
        const at::Tensor dout = ToHeads(grads[0].contiguous(), shape.heads, layout);
        ContextGrads d = AttendBackward(ways, kept, options, dout);
        at::Tensor dqkv =
            at::empty({layout.rows(), shape.groups * (shape.heads_a_group() + 2) * shape.channels},
                      grads[0].options());
        const QkvSlots slots = SlotsOf(dqkv, shape, layout);
        if (table.has_value()) {
          d.q = table->RotateBack(d.q);
          table->RotateBackInto(d.kv[0], slots.k);
        } else {
          slots.k.copy_(d.kv[0]);
        }
        slots.q.copy_(d.q.view(slots.q.sizes()));
        slots.v.copy_(d.kv[1]);
        return TensorList{dqkv};
      });
}

at::Tensor ContextAttentionOp(const QkvHeads& heads, const TokenLayout& layout,
                              const ContextPlan& plan) {
  const Ways ways = WaysOf(plan);
  const int64_t num_heads = heads.q.size(2), channels = heads.q.size(3);
  ContextOptions options = plan.options;
  ContextKept kept;
  at::Tensor rows;
  {
    OpForward forward;
    ContextHeads own{.q = Detached(heads.q).contiguous(), .kv = EmptyKeys(heads.k)};
    own.kv[0].copy_(heads.k);
    own.kv[1].copy_(heads.v);
    rows = at::empty({layout.rows(), num_heads * channels}, heads.q.options());
    kept = Attend(ways, own, options, ToHeads(Detached(rows), num_heads, layout));
  }
  return RecordOp(
      rows, {heads.q, heads.k, heads.v},
      [ways, kept, options, num_heads, layout](const TensorList& grads, const NeedsGrad&) {
        const at::Tensor dout = ToHeads(grads[0].contiguous(), num_heads, layout);
        const ContextGrads d = AttendBackward(ways, kept, options, dout);
        return TensorList{d.q, d.kv[0], d.kv[1]};
      });
}

}  // namespace muster
