// A job's status for people: at most one screen, however many workers it has. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/v1/job.pb.h"

namespace muster {

struct StatusTextOptions {
  bool verbose = false;  // nothing is left out
  int columns = 80;
};

// `storage_trouble`: of the coordinator, empty when there is none.
std::string StatusText(const v1::JobStatus& job, absl::string_view storage_trouble,
                       const StatusTextOptions& options);

// `text` in lines of at most `columns` characters, broken between words where there are any.
std::vector<std::string> Wrapped(absl::string_view text, int columns);

// The groups of PhaseWait.missing, one an entry. When there are more than `most` (at least 3), an
// entry counts the others by their phase: "and 6 more groups: 5 loading, 1 starting (--verbose)";
// what the coordinator has counted together ("and 4032 more ranks (64-4095)") stays the last.
std::vector<std::string> MissingLines(absl::string_view missing, size_t most);

}  // namespace muster
