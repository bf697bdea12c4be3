// What a snapshot memory offers to a recovery, and the tensors to restore from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/recovery/restore_plan.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/snapshot/snapshot_memory.h"

namespace muster {

struct HeldSnapshot {
  HeldState state;
  SnapshotSlot slot;
};
// Complete generations in `memory`, the newest first: those of `rank` are its own, others are kept
// as their buddy. One whose index is damaged is left out.
std::vector<HeldSnapshot> ListSnapshots(const SnapshotMemory& memory, int rank);

struct SnapshotContents {
  std::vector<NamedTensor> tensors;  // over mapped memory, which lives as long as they do
  std::map<std::string, std::string> texts;
};
// NOT_FOUND; DATA_LOSS: damaged. Reads all of its bytes once.
absl::StatusOr<SnapshotContents> ReadSnapshot(const SnapshotMemory& memory, SnapshotSlot slot);

}  // namespace muster
