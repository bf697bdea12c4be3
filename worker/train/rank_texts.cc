#include "worker/train/rank_texts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "common/base/status.h"

namespace muster {

absl::StatusOr<std::vector<std::string>> GatherTexts(const std::string& mine, Communicator& group,
                                                     c10::Device device) {
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor length = at::full({1}, static_cast<int64_t>(mine.size()), integers);
  at::Tensor lengths = at::empty({group.size()}, integers);
  RETURN_IF_ERROR(Annotate(group.AllGather(lengths, length)->Wait(), "gathering texts"));
  lengths = lengths.cpu();
  const int64_t longest = lengths.max().item<int64_t>();
  std::vector<std::string> texts(static_cast<size_t>(group.size()));
  if (longest == 0) return texts;
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr<uint8_t>(), mine.data(), mine.size());
  at::Tensor all =
      at::empty({group.size() * longest}, at::TensorOptions().dtype(at::kByte).device(device));
  RETURN_IF_ERROR(Annotate(group.AllGather(all, padded.to(device))->Wait(), "gathering texts"));
  all = all.cpu();
  const char* const bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const int64_t size = lengths.const_data_ptr<int64_t>()[rank];
    texts[static_cast<size_t>(rank)].assign(bytes + rank * longest, static_cast<size_t>(size));
  }
  return texts;
}

}  // namespace muster
