#include "worker/optim/layer_wise.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "common/base/status.h"

namespace muster {
namespace {

// Elements; a larger tensor travels alone, without a copy.
constexpr int64_t kPackedElements = int64_t{4} << 20;

// What travels in one broadcast.
struct Pack {
  int owner = 0;
  std::vector<at::Tensor> tensors;  // of one type
  int64_t numel = 0;
};

// Packs by owner and type.
std::vector<std::vector<Pack>> PacksByOwner(const std::vector<OwnedTensor>& tensors,
                                            int num_ranks) {
  std::vector<std::vector<Pack>> packs(num_ranks);
  std::map<std::pair<int, at::ScalarType>, size_t> open;  // the pack that is filled
  for (const OwnedTensor& tensor : tensors) {
    std::vector<Pack>& of_owner = packs[tensor.owner];
    const auto key = std::make_pair(tensor.owner, tensor.data.scalar_type());
    const auto found = open.find(key);
    const int64_t numel = tensor.data.numel();
    if (found == open.end() || of_owner[found->second].numel + numel > kPackedElements) {
      of_owner.push_back({.owner = tensor.owner});
      open[key] = of_owner.size() - 1;
    }
    Pack& pack = of_owner[open[key]];
    pack.tensors.push_back(tensor.data);
    pack.numel += numel;
  }
  return packs;
}

struct Flight {
  const Pack* pack;
  at::Tensor data;
  WorkPtr work;
};

Flight Start(const Pack& pack, Communicator& group) {
  Flight flight{.pack = &pack};
  if (pack.tensors.size() == 1) {
    flight.data = pack.tensors[0];
  } else {
    flight.data = at::empty({pack.numel}, pack.tensors[0].options());
    int64_t used = 0;
    for (const at::Tensor& tensor : pack.tensors) {
      if (pack.owner == group.rank())
        flight.data.narrow(0, used, tensor.numel()).copy_(tensor.view({-1}));
      used += tensor.numel();
    }
  }
  flight.work = group.Broadcast(flight.data, pack.owner);
  return flight;
}

absl::Status Finish(const Flight& flight, Communicator& group) {
  RETURN_IF_ERROR(flight.work->Wait());
  if (flight.pack->tensors.size() == 1 || flight.pack->owner == group.rank())
    return absl::OkStatus();
  int64_t used = 0;
  for (at::Tensor tensor : flight.pack->tensors) {
    tensor.view({-1}).copy_(flight.data.narrow(0, used, tensor.numel()));
    used += tensor.numel();
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int> PingPongOwners(const std::vector<int64_t>& numels, int num_ranks) {
  std::vector<size_t> order(numels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return numels[a] < numels[b]; });
  std::vector<int> owners(numels.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int turn = static_cast<int>(i % (2 * static_cast<size_t>(num_ranks)));
    owners[order[i]] = turn < num_ranks ? turn : 2 * num_ranks - 1 - turn;
  }
  return owners;
}

absl::Status BroadcastFromOwners(const std::vector<OwnedTensor>& tensors, Communicator& group) {
  if (group.size() == 1) return absl::OkStatus();
  at::NoGradGuard no_grad;
  const std::vector<std::vector<Pack>> packs = PacksByOwner(tensors, group.size());
  size_t most = 0;
  for (const auto& of_owner : packs) most = std::max(most, of_owner.size());
  for (size_t i = 0; i < most; ++i) {
    std::vector<Flight> flights;
    for (const auto& of_owner : packs)
      if (i < of_owner.size()) flights.push_back(Start(of_owner[i], group));
    for (const Flight& flight : flights)
      RETURN_IF_ERROR(Annotate(Finish(flight, group), "parameters from their owners"));
  }
  return absl::OkStatus();
}

}  // namespace muster
