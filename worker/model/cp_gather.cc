#include "worker/model/cp_gather.h"

#include <utility>

#include <ATen/ATen.h>

#include "worker/data/context_slices.h"
#include "worker/model/attention_layout.h"

namespace muster {
namespace {

// Copies between (n, 2, B, S, groups, D), by rank, and (2, B, n S, groups, D), the sequence.
enum class Direction { kToSequence, kToRanks };
void Reorder(const at::Tensor& by_rank, const at::Tensor& sequence, Direction direction) {
  const int64_t chunk = by_rank.size(3) / 2;
  const std::vector<int64_t> arrival = ArrivalOfChunk(static_cast<int>(by_rank.size(0)));
  for (int64_t i = 0; i < static_cast<int64_t>(arrival.size()); ++i) {
    const at::Tensor there = by_rank[arrival[i] / 2].narrow(2, arrival[i] % 2 * chunk, chunk);
    const at::Tensor here = sequence.narrow(2, i * chunk, chunk);
    if (direction == Direction::kToSequence) here.copy_(there);
    if (direction == Direction::kToRanks) there.copy_(here);
  }
}

std::vector<int64_t> SizesByRank(const at::Tensor& kv, int64_t ranks) {
  std::vector<int64_t> sizes = kv.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  return sizes;
}
std::vector<int64_t> SizesOfSequence(const at::Tensor& kv, int64_t ranks) {
  std::vector<int64_t> sizes = kv.sizes().vec();
  sizes[2] *= ranks;
  return sizes;
}

at::Tensor GatherKeys(Communicator& cp, const at::Tensor& kv) {
  const at::Tensor by_rank = at::empty(SizesByRank(kv, cp.size()), kv.options());
  WaitOrThrow(cp.AllGather(by_rank, kv));
  at::Tensor sequence = at::empty(SizesOfSequence(kv, cp.size()), kv.options());
  Reorder(by_rank, sequence, Direction::kToSequence);
  return sequence;
}

// One of the rank's two chunks of queries, and the keys that it reads.
struct Chunk {
  int64_t first_query = 0, queries = 0, keys = 0;
  Visible visible;
};
Chunk ChunkOf(const Communicator& cp, int half, int64_t tokens, const at::Tensor& hidden) {
  const int64_t length = tokens / 2, chunks = 2 * cp.size();
  const int64_t index = half == 0 ? cp.rank() : chunks - 1 - cp.rank();
  Chunk chunk{.first_query = half * length, .queries = length, .keys = (index + 1) * length};
  if (hidden.defined()) {
    chunk.keys = chunks * length;
    chunk.visible.hidden = hidden.narrow(2, chunk.first_query, length);
  } else {
    chunk.visible.past = index * length;
  }
  return chunk;
}
// x (B, S, heads, D)
at::Tensor Queries(const Chunk& chunk, const at::Tensor& x) {
  return x.narrow(1, chunk.first_query, chunk.queries);
}
// x (B, seq, groups, D)
at::Tensor Keys(const Chunk& chunk, const at::Tensor& x) { return x.narrow(1, 0, chunk.keys); }
AttentionTensors InputsOf(const Chunk& chunk, const at::Tensor& q, const at::Tensor& sequence) {
  return {Queries(chunk, q), Keys(chunk, sequence[0]), Keys(chunk, sequence[1])};
}

// Prefixes differ in length: the ranks' random states stay together.
PieceOptions PieceOf(const ContextOptions& options, const at::Tensor& sequence) {
  PieceOptions piece = options.piece;
  piece.drawn_keys = sequence.size(2);
  return piece;
}

}  // namespace

ContextKept GatherAttention(Communicator& cp, const ContextHeads& own,
                            const ContextOptions& options, const at::Tensor& out) {
  const at::Tensor sequence = GatherKeys(cp, own.kv);
  ContextKept kept{.q = own.q, .kv = own.kv, .out = out};
  std::vector<at::Tensor> lse;
  for (int half = 0; half < 2; ++half) {
    const Chunk chunk = ChunkOf(cp, half, own.q.size(1), options.hidden);
    const at::Tensor slot = Queries(chunk, out);
    PieceResult piece = AttendPiece(InputsOf(chunk, own.q, sequence), chunk.visible,
                                    PieceOf(options, sequence), slot);
    CopyUnlessThere(piece.out, slot);
    lse.push_back(piece.lse);
    kept.pieces.push_back(std::move(piece.kept));
  }
  kept.lse = at::cat(lse, 2);
  return kept;
}

ContextGrads GatherAttentionBackward(Communicator& cp, const ContextKept& kept,
                                     const ContextOptions& options, const at::Tensor& dout) {
  const at::Tensor sequence = GatherKeys(cp, kept.kv);
  const at::Tensor dsequence = at::empty_like(sequence);
  ContextGrads result{at::empty_like(kept.q), at::empty_like(kept.kv)};
  // The later chunk first: its prefix holds the other's.
  for (const int half : {1, 0}) {
    const Chunk chunk = ChunkOf(cp, half, kept.q.size(1), options.hidden);
    const AttentionTensors whole = {Queries(chunk, result.q), Keys(chunk, dsequence[0]),
                                    Keys(chunk, dsequence[1])};
    const bool first = half == 1;
    const AttentionTensors grads = AttendPieceBackward(
        InputsOf(chunk, kept.q, sequence), chunk.visible, PieceOf(options, sequence),
        kept.pieces[half],
        {.out = Queries(chunk, kept.out),
         .lse = kept.lse.narrow(2, chunk.first_query, chunk.queries),
         .dout = Queries(chunk, dout)},
        {whole.q, first ? whole.k : at::Tensor(), first ? whole.v : at::Tensor()});
    CopyUnlessThere(grads.q, whole.q);
    if (first) {
      CopyUnlessThere(grads.k, whole.k);
      CopyUnlessThere(grads.v, whole.v);
      dsequence.narrow(2, chunk.keys, dsequence.size(2) - chunk.keys).zero_();
    } else {
      whole.k.add_(grads.k);
      whole.v.add_(grads.v);
    }
  }
  const at::Tensor by_rank = at::empty(SizesByRank(kept.kv, cp.size()), kept.kv.options());
  Reorder(by_rank, dsequence, Direction::kToRanks);
  WaitOrThrow(cp.ReduceScatter(result.kv, by_rank, ReduceOp::kSum));
  return result;
}

}  // namespace muster
