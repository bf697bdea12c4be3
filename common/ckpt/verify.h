// Finding and checking checkpoints on disk, without torch: behind `muster ckpt verify` and the
// trainer's load.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ckpt/manifest.h"

namespace muster {

// Reads and checks folder/manifest.json. NOT_FOUND without one (not a whole checkpoint); DATA_LOSS
// when damaged.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// The manifest, and that every file it names is there with its size. Reads no tensor.
absl::StatusOr<Manifest> CheckComplete(const std::string& folder);

struct FoundCheckpoint {
  std::string path;
  Manifest manifest;
  std::vector<std::string> notes;  // why a newer or a named one was passed over
};
// The one to load from `root`: `step` if given; else the one that the tracker names; if that is
// missing or incomplete, the newest complete one. NOT_FOUND when nothing was ever saved there, so
// that a caller may start from scratch; DATA_LOSS when something was and nothing is whole;
// FAILED_PRECONDITION when `step` is not there or not whole.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& root,
                                               std::optional<int64_t> step);

// Iterations of the folders in `root` that bear a checkpoint's name, ascending; empty for no root.
std::vector<int64_t> ListCheckpoints(const std::string& root);

struct VerifyResult {
  Manifest manifest;
  int64_t num_files = 0, num_bytes = 0;
  std::vector<std::string> problems;  // file, byte range and what is wrong; empty: all is well
};
// Every byte of every file against its checksum; a file that the manifest does not list is a
// problem too. An error status only when there is no manifest to check by.
absl::StatusOr<VerifyResult> VerifyCheckpoint(const std::string& folder);

}  // namespace muster
