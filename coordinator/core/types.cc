#include "coordinator/core/types.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

const char* DeviceKindName(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "?";
}

std::string CompressRanks(std::vector<int> ranks, int max_ranges) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  int num_ranges = 0;
  for (size_t i = 0; i < ranks.size(); ++num_ranges) {
    if (num_ranges == max_ranges) {
      absl::StrAppend(&text, ",...");
      break;
    }
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] <= ranks[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i]);
    if (ranks[last] > ranks[i]) absl::StrAppend(&text, "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace muster
