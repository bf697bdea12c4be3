#include "common/ckpt/layout.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr absl::string_view kReplacedSuffix = ".replaced";
constexpr absl::string_view kPartialSuffix = ".partial";

}  // namespace

std::string CheckpointFolderName(int64_t iteration) {
  return absl::StrFormat("iter_%07d", iteration);
}

std::string AsideFolderName(int64_t iteration, int64_t epoch) {
  return absl::StrFormat("iter_%07d.epoch_%d.partial", iteration, epoch);
}

std::string ReplacedFolderName(int64_t iteration) {
  return absl::StrCat(CheckpointFolderName(iteration), kReplacedSuffix);
}

std::string ShardName(int64_t rank) { return absl::StrFormat("shard_%05d.safetensors", rank); }

std::string RankStateName(int64_t rank) { return absl::StrFormat("rank_%05d.json", rank); }

std::optional<int64_t> IterationOfFolder(absl::string_view name) {
  absl::string_view digits = absl::StripSuffix(name, kReplacedSuffix);
  int64_t iteration = 0;
  if (!absl::ConsumePrefix(&digits, "iter_") || digits.size() < 7 ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &iteration)) {
    return std::nullopt;
  }
  return iteration;
}

bool IsAsideFolder(absl::string_view name) {
  return absl::StartsWith(name, "iter_") && absl::EndsWith(name, kPartialSuffix);
}

std::string TrackerText(int64_t iteration) { return absl::StrCat(iteration); }

absl::StatusOr<std::string> FolderOfTracker(absl::string_view text) {
  const absl::string_view value = absl::StripAsciiWhitespace(text);
  if (value == "release") return std::string(value);
  int64_t iteration = 0;
  if (!absl::SimpleAtoi(value, &iteration) || iteration < 0) {
    return absl::DataLossError(absl::StrCat(kTrackerName, " holds \"", value.substr(0, 40),
                                            "\"; it must be an iteration or \"release\""));
  }
  return CheckpointFolderName(iteration);
}

std::vector<int64_t> CheckpointsToDelete(const std::vector<int64_t>& present, int64_t saved,
                                         std::optional<int64_t> previous,
                                         const RetentionOptions& options) {
  const auto is_retained = [&](int64_t iteration) {
    return options.save_retain_interval.has_value() &&
           iteration % *options.save_retain_interval == 0;
  };
  std::set<int64_t> doomed;
  if (options.save_retain_interval.has_value() && previous.has_value() && *previous > 0 &&
      *previous != saved && !is_retained(*previous)) {
    doomed.insert(*previous);
  }
  if (options.keep_last.has_value()) {
    // Newest first; the one just saved counts as the newest even after a return to an older step.
    std::set<int64_t, std::greater<>> others(present.begin(), present.end());
    others.erase(saved);
    int64_t kept = 1;
    for (const int64_t iteration : others) {
      if (doomed.contains(iteration)) continue;
      if (kept < *options.keep_last) {
        ++kept;
      } else if (!is_retained(iteration)) {
        doomed.insert(iteration);
      }
    }
  }
  return {doomed.begin(), doomed.end()};
}

}  // namespace muster
