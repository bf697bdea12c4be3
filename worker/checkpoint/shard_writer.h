// One rank's files of a checkpoint.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/ckpt/manifest.h"
#include "common/files/file_ops.h"
#include "worker/checkpoint/checkpoint.h"

namespace muster {

// Writes and syncs, into `folder` (created if need be): the shard with the slices that this rank
// writes, its rank state, and on rank 0 the common state. Returns what the manifest is to say of
// them.
absl::StatusOr<ManifestPart> WriteShard(FileOps& files, const std::string& folder, int rank,
                                        const CheckpointState& state);

}  // namespace muster
