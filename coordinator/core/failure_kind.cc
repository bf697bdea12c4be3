#include "coordinator/core/failure_kind.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace muster {
namespace {

constexpr size_t kLinesLookedAt = 10;  // the last ones

// `parts` in small letters; those of the text do not matter.
template <size_t N>
bool ContainsAny(absl::string_view text, const char* const (&parts)[N]) {
  const std::string lower = absl::AsciiStrToLower(text);
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](const char* part) { return absl::StrContains(lower, part); });
}

}  // namespace

const char* FailureKindName(FailureKind kind) {
  switch (kind) {
    case FailureKind::kTrainerExit:
      return "trainer_exit";
    case FailureKind::kLaunch:
      return "launch";
    case FailureKind::kOutOfMemory:
      return "out_of_memory";
    case FailureKind::kDiskFull:
      return "disk_full";
    case FailureKind::kTrainerError:
      return "trainer_error";
    case FailureKind::kCollective:
      return "collective";
    case FailureKind::kHang:
      return "hang";
    case FailureKind::kAgentLost:
      return "agent_lost";
    case FailureKind::kNodeLost:
      return "node_lost";
    case FailureKind::kTimeout:
      return "timeout";
    case FailureKind::kWrongResult:
      return "rerun_persistent";
  }
  return "?";
}

bool IsDiskFull(absl::string_view error) {
  // strerror of ENOSPC and EDQUOT, and what libraries make of them.
  return ContainsAny(error, {"no space left on device", "disk quota exceeded", "enospc",
                             "database or disk is full"});
}

bool IsOutOfMemory(absl::string_view text) {
  return ContainsAny(
      text, {"std::bad_alloc", "out of memory", "cannot allocate memory", "can't allocate memory",
             "failed to allocate", "cuda_error_out_of_memory", "cublas_status_alloc_failed"});
}

FailureKind KindOfExit(const ExitedReport& exited, absl::string_view killed_because) {
  if (!killed_because.empty()) return FailureKind::kHang;
  if (!exited.launch_error.empty()) return FailureKind::kLaunch;
  if (exited.oom_killed) return FailureKind::kOutOfMemory;
  const size_t num_lines = exited.last_log_lines.size();
  for (size_t i = num_lines - std::min(num_lines, kLinesLookedAt); i < num_lines; ++i) {
    if (IsOutOfMemory(exited.last_log_lines[i])) return FailureKind::kOutOfMemory;
    if (IsDiskFull(exited.last_log_lines[i])) return FailureKind::kDiskFull;
  }
  return FailureKind::kTrainerExit;
}

FailureKind KindOfFailed(const FailedMessage& failed) {
  if (IsOutOfMemory(failed.reason)) return FailureKind::kOutOfMemory;
  if (IsDiskFull(failed.reason)) return FailureKind::kDiskFull;
  return failed.collective ? FailureKind::kCollective : FailureKind::kTrainerError;
}

const char* KindPrefix(FailureKind kind) {
  if (kind == FailureKind::kOutOfMemory) return "out of memory: ";
  return kind == FailureKind::kDiskFull ? "the disk is full: " : "";
}

}  // namespace muster
