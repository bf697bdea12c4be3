// Sums reduce-scattered shards over the instances of the distributed optimizer (reference 6.4, n >
// 1).
//
// A shard's sum cannot start before its reduce-scatter is done, and nobody is there to start it at
// that moment: it is started when the next bucket's reduce-scatter has been issued, or when
// somebody waits for it. So the sums run behind the backward pass but for the last one, and their
// order is that of the reduce-scatters on every rank, whatever the timing. Thread-safety: one
// thread (the rank's). Outlives the works that it returned.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"

namespace muster {

class InterReducer {
 public:
  explicit InterReducer(Communicator& inter) : inter_(inter) {}
  InterReducer(const InterReducer&) = delete;
  InterReducer& operator=(const InterReducer&) = delete;

  // `shard` is what `scatter` fills. The work is done when the sum over the instances is.
  WorkPtr Then(WorkPtr scatter, at::Tensor shard);
  // Starts every sum that has not started.
  void StartWaiting();
  // Forgets them: their step was thrown away.
  void Clear() { waiting_.clear(); }

 private:
  class ShardSum;
  Communicator& inter_;
  std::vector<std::shared_ptr<ShardSum>> waiting_;  // in the order of the reduce-scatters
};

}  // namespace muster
