#include "worker/model/cp_heads.h"

#include <ATen/ATen.h>

#include "worker/data/context_slices.h"

namespace muster {
namespace {

// All tensors of a call side by side: (rank, B, S, heads of all of them / n, D).
at::Tensor MakeBuffer(const TensorList& local, int64_t n) {
  int64_t heads = 0;
  for (const at::Tensor& x : local) heads += x.size(2) / n;
  const at::Tensor& x = local[0];
  return at::empty({n, x.size(0), x.size(1), heads, x.size(3)}, x.options());
}

// The part of a buffer that is tensor `index`'s: (rank, B, S, heads / n, D).
at::Tensor PartOf(const at::Tensor& buffer, const TensorList& local, size_t index) {
  const int64_t n = buffer.size(0);
  int64_t first = 0;
  for (size_t i = 0; i < index; ++i) first += local[i].size(2) / n;
  return buffer.narrow(3, first, local[index].size(2) / n);
}

// x (B, S, heads, D) as (rank, B, S, heads / n, D), a view.
at::Tensor ByRank(const at::Tensor& x, int64_t n) {
  return x.unflatten(2, {n, x.size(2) / n}).permute({2, 0, 1, 3, 4});
}

// Copies between by_rank (rank, B, S, heads / n, D) and sequence (B, n S, heads / n, D).
enum class Direction { kToSequence, kToRanks };
void Reorder(const at::Tensor& by_rank, const at::Tensor& sequence, Direction direction) {
  const int64_t chunk = by_rank.size(2) / 2;
  const std::vector<int64_t> arrival = ArrivalOfChunk(static_cast<int>(by_rank.size(0)));
  for (int64_t i = 0; i < static_cast<int64_t>(arrival.size()); ++i) {
    const at::Tensor there = by_rank[arrival[i] / 2].narrow(1, arrival[i] % 2 * chunk, chunk);
    const at::Tensor here = sequence.narrow(1, i * chunk, chunk);
    if (direction == Direction::kToSequence) here.copy_(there);
    if (direction == Direction::kToRanks) there.copy_(here);
  }
}

at::Tensor Exchange(Communicator& a2a, const at::Tensor& sent) {
  at::Tensor received = at::empty_like(sent);
  WaitOrThrow(a2a.AllToAll(received, sent, {}, {}));
  return received;
}

}  // namespace

void HeadsToSequence(Communicator& a2a, const TensorList& local, const TensorList& whole) {
  const int64_t n = a2a.size();
  const at::Tensor sent = MakeBuffer(local, n);
  for (size_t i = 0; i < local.size(); ++i) PartOf(sent, local, i).copy_(ByRank(local[i], n));
  const at::Tensor received = Exchange(a2a, sent);
  for (size_t i = 0; i < local.size(); ++i) {
    Reorder(PartOf(received, local, i), whole[i], Direction::kToSequence);
  }
}

void SequenceToHeads(Communicator& a2a, const TensorList& whole, const TensorList& local) {
  const int64_t n = a2a.size();
  const at::Tensor sent = MakeBuffer(local, n);
  for (size_t i = 0; i < local.size(); ++i) {
    Reorder(PartOf(sent, local, i), whole[i], Direction::kToRanks);
  }
  const at::Tensor received = Exchange(a2a, sent);
  for (size_t i = 0; i < local.size(); ++i) {
    ByRank(local[i], n).copy_(PartOf(received, local, i));
  }
}

at::Tensor GatherMaskRows(Communicator& a2a, const at::Tensor& hidden) {
  const int64_t n = a2a.size(), batch = hidden.size(0), rows = hidden.size(2);
  const at::Tensor by_rank = at::empty({n, batch, rows, 1, hidden.size(3)}, hidden.options());
  WaitOrThrow(a2a.AllGather(by_rank, hidden.contiguous()));
  const at::Tensor whole = at::empty({batch, n * rows, 1, hidden.size(3)}, hidden.options());
  Reorder(by_rank, whole, Direction::kToSequence);
  return whole.transpose(1, 2);
}

}  // namespace muster
