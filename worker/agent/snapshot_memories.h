// The memory that trainers keep their snapshots in: files without a name (memfd) that this process
// holds open, so that they outlive the trainers. A trainer opens its own by the path in its
// AssignMessage; how large it is and what it holds is the trainers' affair. Which one is whose:
// worker/core/snapshot_memory_book.h. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/runtime/fd.h"

namespace muster {

class SnapshotMemories {
 public:
  // Of memory `id`, which is made when it was not asked for before. Good for other processes of
  // this user until Free(id). UNAVAILABLE: no descriptors or memory.
  absl::StatusOr<std::string> PathOf(int64_t id);
  // Whoever has it open or mapped keeps it until then.
  void Free(int64_t id) { files_.erase(id); }

 private:
  std::map<int64_t, Fd> files_;
};

}  // namespace muster
