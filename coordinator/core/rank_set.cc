#include "coordinator/core/rank_set.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace muster {

bool RankSet::Contains(int rank) const {
  const auto after = ranges_.upper_bound(rank);
  return after != ranges_.begin() && std::prev(after)->second >= rank;
}

void RankSet::Add(int rank) {
  if (Contains(rank)) return;
  ++size_;
  int first = rank, last = rank;
  const auto after = ranges_.upper_bound(rank);
  if (after != ranges_.end() && after->first == rank + 1) {
    last = after->second;
    ranges_.erase(after);
  }
  const auto next = ranges_.upper_bound(rank);
  if (next != ranges_.begin() && std::prev(next)->second == rank - 1) {
    first = std::prev(next)->first;
  }
  ranges_[first] = last;
}

void RankSet::Remove(int rank) {
  const auto after = ranges_.upper_bound(rank);
  if (after == ranges_.begin()) return;
  const auto range = std::prev(after);
  const int first = range->first, last = range->second;
  if (last < rank) return;
  --size_;
  if (first == rank) {
    ranges_.erase(range);
  } else {
    range->second = rank - 1;
  }
  if (rank < last) ranges_[rank + 1] = last;
}

std::string RankSet::Text(int max_ranges) const {
  std::string text;
  int num_ranges = 0;
  for (const auto& [first, last] : ranges_) {
    if (num_ranges++ == max_ranges) {
      absl::StrAppend(&text, ",...");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", first);
    if (last > first) absl::StrAppend(&text, "-", last);
  }
  return text;
}

}  // namespace muster
