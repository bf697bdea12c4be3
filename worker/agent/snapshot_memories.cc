#include "worker/agent/snapshot_memories.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/trainer_spawn.h"

namespace muster {

absl::StatusOr<std::string> SnapshotMemories::PathOf(int64_t id) {
  auto found = files_.find(id);
  if (found == files_.end()) {
    // Not inherited: a trainer has only what it opened itself.
    Fd file(memfd_create(absl::StrCat("muster-snapshot-", id).c_str(), MFD_CLOEXEC));
    if (!file.open()) return ErrnoStatus(errno, "memory for snapshots (memfd_create)");
    found = files_.emplace(id, std::move(file)).first;
  }
  return absl::StrCat("/proc/", getpid(), "/fd/", found->second.get());
}

}  // namespace muster
