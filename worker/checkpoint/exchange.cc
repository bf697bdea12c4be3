#include "worker/checkpoint/exchange.h"

#include <algorithm>
#include <cstring>

#include <ATen/ATen.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "worker/comm/long_wait.h"

namespace muster {

absl::StatusOr<std::vector<std::string>> ExchangeTexts(const std::string& text, at::Device device,
                                                       Communicator& world) {
  const auto integers = at::TensorOptions().dtype(at::kLong);
  const int64_t size = world.size();
  const at::Tensor my_length = at::full({1}, static_cast<int64_t>(text.size()), integers);
  const at::Tensor lengths_on_device = at::empty({size}, integers.device(device));
  RETURN_IF_ERROR(world.AllGather(lengths_on_device, my_length.to(device))->Wait());
  const at::Tensor lengths = lengths_on_device.cpu();
  const int64_t* const length = lengths.const_data_ptr<int64_t>();

  const int64_t longest = *std::max_element(length, length + size);
  const int64_t words = std::max<int64_t>(1, (longest + 7) / 8);
  const at::Tensor mine = at::zeros({words}, integers);
  if (!text.empty()) std::memcpy(mine.data_ptr(), text.data(), text.size());
  const at::Tensor all_on_device = at::empty({size * words}, integers.device(device));
  RETURN_IF_ERROR(world.AllGather(all_on_device, mine.to(device))->Wait());
  const at::Tensor all = all_on_device.cpu();
  const char* const bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> texts;
  for (int64_t r = 0; r < size; ++r) {
    texts.emplace_back(bytes + r * words * 8, static_cast<size_t>(length[r]));
  }
  return texts;
}

absl::StatusOr<std::vector<std::string>> ExchangeOutcomes(const absl::StatusOr<std::string>& mine,
                                                          at::Device device, Communicator& world) {
  const LongWait until_the_slowest_is_done;  // which took as long as its disk did
  // "CODE\nPAYLOAD" or "CODE\nMESSAGE".
  const std::string sent =
      absl::StrCat(static_cast<int>(mine.status().code()), "\n",
                   mine.ok() ? absl::string_view(*mine) : mine.status().message());
  ASSIGN_OR_RETURN(std::vector<std::string> texts, ExchangeTexts(sent, device, world));
  for (size_t r = 0; r < texts.size(); ++r) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(texts[r], absl::MaxSplits('\n', 1));
    int code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) {
      return absl::InternalError(absl::StrCat("rank ", r, " sent an unreadable outcome"));
    }
    if (code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(code),
                          absl::StrCat("rank ", r, ": ", parts.second));
    }
    texts[r] = parts.second;
  }
  return texts;
}

}  // namespace muster
