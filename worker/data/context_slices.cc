#include "worker/data/context_slices.h"

#include <ATen/ops/cat.h>

#include "common/base/check.h"

namespace muster {

at::Tensor SliceForContext(const at::Tensor& whole, int64_t dim, ContextPlace place) {
  if (place.size == 1 || !whole.defined()) return whole;
  const int64_t chunks = 2 * place.size;
  MUSTER_CHECK_MSG(whole.size(dim) % chunks == 0, "the sequence is cut into equal chunks");
  const int64_t length = whole.size(dim) / chunks;
  return at::cat({whole.narrow(dim, place.rank * length, length),
                  whole.narrow(dim, (chunks - 1 - place.rank) * length, length)},
                 dim);
}

Batch SliceForContext(const Batch& whole, ContextPlace place) {
  return {.tokens = SliceForContext(whole.tokens, 1, place),
          .labels = SliceForContext(whole.labels, 1, place),
          .loss_mask = SliceForContext(whole.loss_mask, 1, place),
          .position_ids = SliceForContext(whole.position_ids, 1, place),
          .attention_mask = SliceForContext(whole.attention_mask, 2, place)};
}

}  // namespace muster
