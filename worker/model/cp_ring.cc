#include "worker/model/cp_ring.h"

#include <utility>

#include <ATen/ATen.h>

#include "worker/data/context_slices.h"
#include "worker/model/attention_layout.h"

namespace muster {
namespace {

struct Range {
  int64_t first = 0, count = 0;
};

// One step's attention: which rows of this rank's queries and of the source's keys, and how.
struct Step {
  Range queries, keys;
  Visible visible;
};

Step StepOf(const Communicator& ring, int source, int64_t tokens, const at::Tensor& hidden) {
  const Range all = {0, tokens}, first_half = {0, tokens / 2};
  const Range second_half = {tokens / 2, tokens / 2};
  if (hidden.defined()) {
    return {all, all, {.hidden = SliceForContext(hidden, 3, {source, ring.size()})}};
  }
  if (source == ring.rank()) return {all, all, {.past = 0}};
  if (source < ring.rank()) return {all, first_half, {}};
  return {second_half, all, {}};
}

at::Tensor Rows(const at::Tensor& x, const Range& range) {
  return x.narrow(1, range.first, range.count);
}
// kv (2, B, S, groups, D)
AttentionTensors InputsOf(const Step& step, const at::Tensor& q, const at::Tensor& kv) {
  return {Rows(q, step.queries), Rows(kv[0], step.keys), Rows(kv[1], step.keys)};
}

// Both in one batch: no order among them can deadlock.
WorkPtr Exchange(Communicator& ring, int to, const at::Tensor& sent, int from,
                 const at::Tensor& received) {
  return ring.SendRecv({{.kind = P2POp::Kind::kSend, .tensor = sent, .peer = to},
                        {.kind = P2POp::Kind::kRecv, .tensor = received, .peer = from}});
}

at::ScalarType SumsOf(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

ContextKept RingAttention(Communicator& ring, const ContextHeads& own,
                          const ContextOptions& options, const at::Tensor& out) {
  const int n = ring.size(), rank = ring.rank();
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  ContextKept kept{.q = own.q, .out = out};
  JoinedAttention joined;
  at::Tensor kv = own.kv, other;  // the keys of this step, and those of the next
  for (int i = 0; i < n; ++i) {
    WorkPtr exchange;
    if (i + 1 < n) {
      if (!other.defined()) other = at::empty_like(own.kv);
      exchange = Exchange(ring, next, kv, before, other);
    }
    const Step step = StepOf(ring, (rank + n - i) % n, own.q.size(1), options.hidden);
    PieceResult piece = AttendPiece(InputsOf(step, own.q, kv), step.visible, options.piece);
    joined.Add(piece, step.queries.first);
    kept.pieces.push_back(std::move(piece.kept));
    if (exchange == nullptr) continue;
    WaitOrThrow(exchange);
    std::swap(kv, other);  // those of this step are read and sent
  }
  out.copy_(joined.out());
  kept.lse = joined.lse();
  kept.kv = kv;
  return kept;
}

ContextGrads RingAttentionBackward(Communicator& ring, const ContextKept& kept,
                                   const ContextOptions& options, const at::Tensor& dout) {
  const int n = ring.size(), rank = ring.rank();
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  std::vector<int64_t> both = kept.kv.sizes().vec();
  both.insert(both.begin(), 2);
  at::Tensor dq = at::zeros(kept.q.sizes(), kept.q.options().dtype(SumsOf(kept.q)));
  at::Tensor kv = kept.kv, dkv;  // of this step's source; dkv: of the source of the step before
  at::Tensor buffer;             // (2, 2, B, S, groups, D), holds both of them from step 1 on
  at::Tensor other;              // what the next step's are received into
  for (int i = 0; i < n; ++i) {
    const bool first = i == 0, last = i == n - 1;
    if (!other.defined())
      other = last ? at::empty_like(kept.kv).unsqueeze(0) : at::empty(both, kept.kv.options());
    const at::Tensor next_dkv = other[other.size(0) - 1];
    const WorkPtr exchange = first  ? Exchange(ring, before, kv, next, other[0])
                             : last ? Exchange(ring, before, dkv, next, next_dkv)
                                    : Exchange(ring, before, buffer, next, other);
    const int source = (rank + 1 + i) % n;
    const Step step = StepOf(ring, source, kept.q.size(1), options.hidden);
    const auto grads_of = [&](const AttentionTensors& slots) {
      return AttendPieceBackward(InputsOf(step, kept.q, kv), step.visible, options.piece,
                                 kept.pieces[(rank + n - source) % n],
                                 {.out = Rows(kept.out, step.queries),
                                  .lse = kept.lse.narrow(2, step.queries.first, step.queries.count),
                                  .dout = Rows(dout, step.queries)},
                                 slots);
    };
    const at::Tensor dk = Rows(next_dkv[0], step.keys), dv = Rows(next_dkv[1], step.keys);
    AttentionTensors grads;
    if (first) {  // nobody has begun the sum of these keys' gradient
      if (step.keys.count < kept.kv.size(2)) next_dkv.zero_();
      grads = grads_of({{}, dk, dv});
      CopyUnlessThere(grads.k, dk);
      CopyUnlessThere(grads.v, dv);
      WaitOrThrow(exchange);
    } else {
      grads = grads_of({});
      WaitOrThrow(exchange);
      dk.add_(grads.k);
      dv.add_(grads.v);
    }
    Rows(dq, step.queries).add_(grads.q);
    kv = other[0];
    dkv = next_dkv;
    std::swap(buffer, other);
    if (i == n - 2 && other.defined()) other = other.narrow(0, 1, 1);
  }
  return {dq.to(kept.q.scalar_type()), dkv};
}

}  // namespace muster
