// The lines of rerun.result_rejected_tracker_filename, and what a start learns from them (reference
// 13.6). Pure.
//
//   ts=2026-01-31 10:00:00.000000 node=n1 device=cuda:0 jobID=j rank=3 iteration=7
//   status=first_rerun_reproducible result=nan message='NaN in loss'          (one line)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

enum class RejectionStatus {
  kRerunDisabled,
  kInitialRun,
  kFirstRerunNotReproducible,
  kFirstRerunReproducible,
  kSecondRerunNotReproducible,
  kSecondRerunReproducible,
};
absl::string_view RejectionStatusName(RejectionStatus status);  // "first_rerun_reproducible"

struct RejectionRecord {
  std::string node, device, job_id = "N/A";
  int rank = 0;
  int64_t iteration = 0;  // from 1 on: the one that was being run. (Megatron's newest writes one
                          // more, so that it skips the wrong one.)
  RejectionStatus status = RejectionStatus::kInitialRun;
  double result = 0;
  std::string message;
};

// Without the line's end. Local time, as Megatron; quotes and line ends of the texts become blanks.
std::string FormatRejection(const RejectionRecord& record, absl::Time now, absl::TimeZone zone);
// nullopt: not such a line. Megatron's statuses by name ("RerunValidationStatus.INITIAL_RUN") too.
std::optional<RejectionRecord> ParseRejection(absl::string_view line);

// Iterations that shall be skipped, in rising order: found bad at least twice by the same rank
// (reproducibly, or with reruns disabled), unless more than one rank of one job reported it.
std::vector<int64_t> IterationsToSkip(absl::string_view tracker_file);

}  // namespace muster
