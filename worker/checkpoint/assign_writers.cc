#include "worker/checkpoint/assign_writers.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "worker/checkpoint/tensor_slice.h"

namespace muster {
namespace {

// FNV-1a, 64 bits: the same on every rank. Two slices of one hash would be taken for one, and the
// save refused for the other's missing elements; among 10^6 slices that has a chance of 10^-7.
int64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

absl::StatusOr<int64_t> IdentityOf(const NamedTensor& tensor) {
  ASSIGN_OR_RETURN(const TensorSlice slice, SliceOf(tensor));
  return HashOf(absl::StrCat(tensor.name, "|", absl::StrJoin(slice.box.offset, ","), "|",
                             absl::StrJoin(slice.box.shape, ","), "|", slice.box.flat_begin, "|",
                             slice.box.flat_end));
}

struct Held {
  int64_t identity = 0, bytes = 0;
};

// By rank, in each rank's order.
absl::StatusOr<std::vector<std::vector<Held>>> ExchangeHeld(const std::vector<Held>& mine,
                                                            c10::Device device,
                                                            Communicator& ranks) {
  const auto integers = at::TensorOptions().dtype(at::kLong);
  const int64_t size = ranks.size();
  const at::Tensor counts_there = at::empty({size}, integers.device(device));
  const at::Tensor my_count = at::full({1}, static_cast<int64_t>(mine.size()), integers);
  RETURN_IF_ERROR(ranks.AllGather(counts_there, my_count.to(device))->Wait());
  const at::Tensor counts = counts_there.cpu();
  const int64_t* const count = counts.const_data_ptr<int64_t>();
  const int64_t most = std::max<int64_t>(1, *std::max_element(count, count + size));

  const at::Tensor rows = at::zeros({most, 2}, integers);  // (slices, [identity, bytes])
  int64_t* row = rows.mutable_data_ptr<int64_t>();
  for (const Held& held : mine) {
    *row++ = held.identity;
    *row++ = held.bytes;
  }
  const at::Tensor all_there = at::empty({size * most, 2}, integers.device(device));
  RETURN_IF_ERROR(ranks.AllGather(all_there, rows.to(device))->Wait());
  const at::Tensor all = all_there.cpu();
  const int64_t* const data = all.const_data_ptr<int64_t>();
  std::vector<std::vector<Held>> held(static_cast<size_t>(size));
  for (int64_t rank = 0; rank < size; ++rank) {
    for (int64_t i = 0; i < count[rank]; ++i) {
      const int64_t* const at = data + (rank * most + i) * 2;
      held[rank].push_back({at[0], at[1]});
    }
  }
  return held;
}

// Of each slice; the same on every rank, since all look at the same lists in the same order.
std::map<int64_t, int> ChooseWriters(const std::vector<std::vector<Held>>& held) {
  std::map<int64_t, std::vector<int>> holders;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (const Held& slice : held[rank]) holders[slice.identity].push_back(static_cast<int>(rank));
  }
  std::vector<int64_t> load(held.size(), 0);  // bytes
  std::map<int64_t, int> writer;
  for (const std::vector<Held>& slices : held) {
    for (const Held& slice : slices) {
      if (writer.contains(slice.identity)) continue;
      const std::vector<int>& candidates = holders[slice.identity];
      const int chosen = *std::min_element(candidates.begin(), candidates.end(),
                                           [&](int a, int b) { return load[a] < load[b]; });
      writer[slice.identity] = chosen;
      load[chosen] += slice.bytes;
    }
  }
  return writer;
}

}  // namespace

absl::Status AssignWriters(std::vector<NamedTensor>& tensors, c10::Device device,
                           Communicator& ranks) {
  std::vector<Held> mine;
  std::vector<NamedTensor*> slices;  // of `mine`
  for (NamedTensor& tensor : tensors) {
    const absl::StatusOr<int64_t> identity = IdentityOf(tensor);
    tensor.write = true;
    if (!identity.ok()) continue;
    mine.push_back({*identity, static_cast<int64_t>(tensor.data.nbytes())});
    slices.push_back(&tensor);
  }
  ASSIGN_OR_RETURN(const auto held, ExchangeHeld(mine, device, ranks));
  const std::map<int64_t, int> writer = ChooseWriters(held);
  for (size_t i = 0; i < slices.size(); ++i)
    slices[i]->write = writer.at(mine[i].identity) == ranks.rank();
  return absl::OkStatus();
}

}  // namespace muster
