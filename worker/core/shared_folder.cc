#include "worker/core/shared_folder.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace muster {

FolderRole FolderRoleOf(const LaunchOrder& launch, const std::optional<std::string>& save_folder) {
  if (!save_folder || launch.epoch > 1) return FolderRole::kNone;
  // Spares write nothing.
  const auto num_ranks =
      std::count_if(launch.assignments.begin(), launch.assignments.end(),
                    [&](const auto& it) { return it.rank >= 0 && it.rank < launch.world_size; });
  if (num_ranks == 0 || num_ranks >= launch.world_size) return FolderRole::kNone;
  const bool has_rank_0 = std::any_of(launch.assignments.begin(), launch.assignments.end(),
                                      [](const auto& assignment) { return assignment.rank == 0; });
  return has_rank_0 ? FolderRole::kWriter : FolderRole::kReader;
}

std::string MarkFileName(absl::string_view job_id, int64_t epoch) {
  return absl::StrCat(".muster-shared-", absl::StrReplaceAll(job_id, {{"/", "_"}}), "-", epoch);
}

std::string EncodeMark(const FolderMark& mark) {
  return absl::BytesToHexString(absl::StrCat(mark.nonce, "\n", mark.node));
}

std::optional<FolderMark> DecodeMark(absl::string_view hex) {
  const bool is_hex = hex.size() % 2 == 0 && std::all_of(hex.begin(), hex.end(), [](char c) {
                        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                      });
  if (!is_hex) return std::nullopt;
  const std::string text = absl::HexStringToBytes(hex);
  const size_t end = text.find('\n');
  if (end == std::string::npos || end == 0) return std::nullopt;
  return FolderMark{.node = text.substr(end + 1), .nonce = text.substr(0, end)};
}

MarkDecision DecideMark(const FolderMark& mark, const std::optional<std::string>& found,
                        absl::Duration elapsed, absl::Duration limit) {
  if (found == mark.nonce) return MarkDecision::kGood;
  return elapsed < limit ? MarkDecision::kLookAgain : MarkDecision::kNotShared;
}

absl::Status NotShared(absl::string_view save_folder, absl::string_view node,
                       const FolderMark& mark, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.save=", save_folder, " on node ", node, " does not hold what rank 0 (node ",
      mark.node, ") wrote: it is not the same folder (", why,
      "); every node must see one shared folder at this path"));
}

}  // namespace muster
