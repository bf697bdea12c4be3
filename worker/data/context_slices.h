// Which tokens of a sequence a context-parallel rank holds (reference 14.3): the sequence is cut in
// 2 size chunks of equal length, rank r keeps chunks r and 2 size - 1 - r, in that order. So every
// rank has as much to do under a causal mask as the others. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/data/batch.h"

namespace muster {

struct ContextPlace {
  int rank = 0, size = 1;  // in the cp group
};

// The place's two chunks of dim `dim`, joined. The dim is a multiple of 2 size long.
at::Tensor SliceForContext(const at::Tensor& whole, int64_t dim, ContextPlace place);
// Every tensor by its tokens, the attention mask by its queries: (B, 1, S / size, S).
Batch SliceForContext(const Batch& whole, ContextPlace place);

// What the ranks hold, one rank after the other, has 2 size chunks again, in another order.
// Where each chunk of the sequence is found in it:
inline std::vector<int64_t> ArrivalOfChunk(int size) {
  std::vector<int64_t> arrival(2 * size);
  for (int rank = 0; rank < size; ++rank) {
    arrival[rank] = 2 * rank;
    arrival[2 * size - 1 - rank] = 2 * rank + 1;
  }
  return arrival;
}
// and which chunk of the sequence lies at each place: the inverse.
inline std::vector<int64_t> ChunkOfArrival(int size) {
  std::vector<int64_t> chunk(2 * size);
  for (int rank = 0; rank < size; ++rank) {
    chunk[2 * rank] = rank;
    chunk[2 * rank + 1] = 2 * size - 1 - rank;
  }
  return chunk;
}

}  // namespace muster
