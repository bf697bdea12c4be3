// A bounded list whose entries have growing indexes; the oldest fall out. Pure; not thread-safe.
// Invariants: size <= capacity; indexes grow and are never used twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace muster {

template <typename T>
class Ring {
 public:
  struct Entry {
    int64_t index = 0;
    T value;
  };

  explicit Ring(size_t capacity) : capacity_(capacity) {}

  int64_t Add(T value) { return AddAt(next_, std::move(value)); }
  // For lists that share one counter: `index` must be at least next().
  int64_t AddAt(int64_t index, T value) {
    if (entries_.size() == capacity_) entries_.pop_front();
    entries_.push_back({index, std::move(value)});
    next_ = index + 1;
    return index;
  }

  // Takes the newest entries away while `drop(value)` holds.
  template <typename Drop>
  void DropNewestWhile(Drop drop) {
    while (!entries_.empty() && drop(entries_.back().value)) entries_.pop_back();
  }

  // Takes those away for which `drop(value)` holds.
  template <typename Drop>
  void DropIf(Drop drop) {
    std::erase_if(entries_, [&](const Entry& entry) { return drop(entry.value); });
  }

  // Entries with index >= since, oldest first, at most `limit`.
  std::vector<const Entry*> Since(int64_t since, size_t limit) const {
    auto it = std::lower_bound(entries_.begin(), entries_.end(), since,
                               [](const Entry& e, int64_t index) { return e.index < index; });
    std::vector<const Entry*> result;
    for (; it != entries_.end() && result.size() < limit; ++it) result.push_back(&*it);
    return result;
  }

  size_t size() const { return entries_.size(); }
  size_t capacity() const { return capacity_; }
  bool empty() const { return entries_.empty(); }
  const Entry& newest() const { return entries_.back(); }
  const std::deque<Entry>& entries() const { return entries_; }
  std::deque<Entry>& entries() { return entries_; }
  int64_t next() const { return next_; }
  int64_t oldest() const { return entries_.empty() ? next_ : entries_.front().index; }

 private:
  size_t capacity_;
  int64_t next_ = 1;
  std::deque<Entry> entries_;
};

}  // namespace muster
