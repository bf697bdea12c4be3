// A set of ranks kept as ranges, so that a job of thousands of ranks which are mostly alike is
// small, and its text ("0-3,7") is made without a look at each rank. Pure.
#pragma once

#include <map>
#include <string>

namespace muster {

class RankSet {
 public:
  // Of no effect when it is there (not there) already. O(log of the number of ranges).
  void Add(int rank);
  void Remove(int rank);

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool Contains(int rank) const;
  // "0-3,7"; at most `max_ranges` ranges, then "...".
  std::string Text(int max_ranges = 8) const;
  // First -> last rank of each range, both inside; ranges do not touch.
  const std::map<int, int>& ranges() const { return ranges_; }

  // Calls visit(rank) in order until it returns false.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [first, last] : ranges_) {
      for (int rank = first; rank <= last; ++rank) {
        if (!visit(rank)) return;
      }
    }
  }

 private:
  std::map<int, int> ranges_;
  int size_ = 0;
};

}  // namespace muster
