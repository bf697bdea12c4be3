#include "worker/core/snapshot_memory_book.h"

#include <algorithm>
#include <utility>

namespace muster {

int64_t SnapshotMemoryBook::Assign(const std::string& worker, const std::string& job_id, int rank) {
  auto own = memories_.find(worker);
  if (own != memories_.end() && own->second.job_id != job_id) {
    Free(own);
    own = memories_.end();
  }
  if (own == memories_.end()) {
    Memory memory{.job_id = job_id};
    const auto former = std::find_if(memories_.begin(), memories_.end(), [&](const auto& entry) {
      const Memory& other = entry.second;
      return other.job_id == job_id && other.rank == rank && other.free_at.has_value();
    });
    if (former != memories_.end()) {
      memory.id = former->second.id;
      memories_.erase(former);
    } else {
      memory.id = next_id_++;
    }
    own = memories_.emplace(worker, std::move(memory)).first;
  }
  own->second.rank = rank;
  own->second.free_at.reset();
  return own->second.id;
}

void SnapshotMemoryBook::End(const std::string& worker, absl::Duration now) {
  const auto found = memories_.find(worker);
  if (found != memories_.end()) found->second.free_at = now + options_.keep;
}

void SnapshotMemoryBook::ForgetJob(absl::string_view job_id) {
  for (auto it = memories_.begin(); it != memories_.end();) {
    it = it->second.job_id == job_id ? Free(it) : std::next(it);
  }
}

void SnapshotMemoryBook::Expire(absl::Duration now) {
  for (auto it = memories_.begin(); it != memories_.end();) {
    const bool over = it->second.free_at && *it->second.free_at <= now;
    it = over ? Free(it) : std::next(it);
  }
}

std::optional<absl::Duration> SnapshotMemoryBook::NextExpiry() const {
  std::optional<absl::Duration> next;
  for (const auto& [worker, memory] : memories_) {
    if (memory.free_at && (!next || *memory.free_at < *next)) next = memory.free_at;
  }
  return next;
}

std::vector<int64_t> SnapshotMemoryBook::TakeFreed() { return std::exchange(freed_, {}); }

SnapshotMemoryBook::Memories::iterator SnapshotMemoryBook::Free(Memories::iterator memory) {
  freed_.push_back(memory->second.id);
  return memories_.erase(memory);
}

}  // namespace muster
