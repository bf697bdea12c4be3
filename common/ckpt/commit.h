// The second phase of a save, rank 0's alone: from shards that lie aside to a checkpoint that is
// whole. Needs no torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ckpt/layout.h"
#include "common/ckpt/manifest.h"
#include "common/files/file_ops.h"

namespace muster {

struct CommittedCheckpoint {
  std::string path;
  std::vector<std::string> notes;  // an old checkpoint that could not be deleted, and the like
};

// The shards listed in `manifest` must lie in root/AsideFolderName(iteration, epoch), synced.
// Order: manifest (synced), an older checkpoint of this iteration moved away, the folder renamed
// into place (synced), tracker (synced); then what retention and earlier attempts leave is deleted.
// After an error the previous checkpoint is still the one that loads. INVALID_ARGUMENT when the
// slices do not cover every tensor once.
absl::StatusOr<CommittedCheckpoint> CommitCheckpoint(FileOps& files, const std::string& root,
                                                     const Manifest& manifest,
                                                     const RetentionOptions& retention);

// Creates the file with these bytes and syncs it.
absl::Status WriteSyncedFile(FileOps& files, const std::string& path, absl::string_view bytes);

}  // namespace muster
