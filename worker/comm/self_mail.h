// Sends of a rank to itself: the k-th send of a channel meets its k-th receive, within a batch and
// across batches. Not thread-safe.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace muster {

class SelfMail {
 public:
  // Carries out the operations whose peer is `rank` (all checked by CheckBatch before). Errors:
  // INVALID_ARGUMENT for a receive of what was not sent, or of another size.
  absl::Status Exchange(const std::vector<P2POp>& batch, int rank);

 private:
  std::array<std::deque<at::Tensor>, kNumP2PChannels> sent_;  // own copies, by channel
};

// Flat copy; nothing to do if they are the same memory.
void CopyFlat(const at::Tensor& output, const at::Tensor& input);

}  // namespace muster
