// The layer-wise distributed form (reference 7.2; Megatron: LayerWiseDistributedOptimizer): whole
// parameters have an owner among the data-parallel ranks, which alone holds their state and updates
// them; after the step every rank gets them from their owners.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace muster {

// The owner of each parameter, given their sizes in elements: sorted by size (ascending, stable)
// and dealt out to ranks 0 .. .. 0, 0 ..., so that each gets about as much.
std::vector<int> PingPongOwners(const std::vector<int64_t>& numels, int num_ranks);

struct OwnedTensor {
  at::Tensor data;  // written by `owner`, contiguous; what the others receive
  int owner = 0;    // rank inside the group
};

// Gives every member the tensors from their owners, several of an owner in one broadcast, and one
// broadcast of each owner at a time. All members list the same tensors in the same order. Borrowed
// group.
absl::Status BroadcastFromOwners(const std::vector<OwnedTensor>& tensors, Communicator& group);

}  // namespace muster
