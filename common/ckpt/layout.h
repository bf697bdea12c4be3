// Names inside a checkpoint root, the tracker file, and which checkpoints are deleted after a save.
// The order of writes that makes a checkpoint appear whole is in docs/formats.md. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

inline constexpr char kTrackerName[] = "latest_checkpointed_iteration.txt";
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kCommonStateName[] = "common.json";

std::string CheckpointFolderName(int64_t iteration);  // iter_0000100
// Where it is written before it is whole; another epoch writes elsewhere.
std::string AsideFolderName(int64_t iteration, int64_t epoch);  // iter_0000100.epoch_3.partial
// Where an older checkpoint of the same iteration is moved while the new one takes its name.
std::string ReplacedFolderName(int64_t iteration);  // iter_0000100.replaced
std::string ShardName(int64_t rank);                // shard_00003.safetensors
std::string RankStateName(int64_t rank);            // rank_00003.json

// The iteration of a folder that may be loaded (a plain or a replaced one); nullopt for any other
// name.
std::optional<int64_t> IterationOfFolder(absl::string_view name);
bool IsAsideFolder(absl::string_view name);

// The tracker holds an iteration or "release"; whitespace around it is ignored.
std::string TrackerText(int64_t iteration);
// The folder that the tracker names. DATA_LOSS for other text.
absl::StatusOr<std::string> FolderOfTracker(absl::string_view text);

struct RetentionOptions {
  std::optional<int64_t> save_retain_interval;
  std::optional<int64_t> keep_last;
};
// Iterations to delete once `saved` is the newest, given all that are there (`saved` included) and
// the one that was newest before. Megatron's rule deletes the previous one unless it is a multiple
// of save_retain_interval; keep_last then keeps that many of the newest, except multiples of
// save_retain_interval, which stay. Never `saved`.
std::vector<int64_t> CheckpointsToDelete(const std::vector<int64_t>& present, int64_t saved,
                                         std::optional<int64_t> previous,
                                         const RetentionOptions& options);

}  // namespace muster
