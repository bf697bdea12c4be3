#include "common/rerun/tracker_file.h"

#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

constexpr std::array kStatuses = {RejectionStatus::kRerunDisabled,
                                  RejectionStatus::kInitialRun,
                                  RejectionStatus::kFirstRerunNotReproducible,
                                  RejectionStatus::kFirstRerunReproducible,
                                  RejectionStatus::kSecondRerunNotReproducible,
                                  RejectionStatus::kSecondRerunReproducible};

// Values end where the next field begins, so none may hold a field's name.
std::string Plain(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}, {"'", " "}, {"=", ":"}});
}

std::optional<RejectionStatus> ParseStatus(absl::string_view text) {
  if (const size_t dot = text.rfind('.'); dot != absl::string_view::npos)
    text.remove_prefix(dot + 1);
  for (const RejectionStatus status : kStatuses) {
    if (absl::AsciiStrToUpper(text) == absl::AsciiStrToUpper(RejectionStatusName(status)))
      return status;
  }
  return std::nullopt;
}

// Is this a result that a rerun of the same iteration would give again?
bool Repeats(RejectionStatus status) {
  return status == RejectionStatus::kRerunDisabled ||
         status == RejectionStatus::kFirstRerunReproducible ||
         status == RejectionStatus::kSecondRerunReproducible;
}

}  // namespace

absl::string_view RejectionStatusName(RejectionStatus status) {
  switch (status) {
    case RejectionStatus::kRerunDisabled:
      return "rerun_disabled";
    case RejectionStatus::kInitialRun:
      return "initial_run";
    case RejectionStatus::kFirstRerunNotReproducible:
      return "first_rerun_not_reproducible";
    case RejectionStatus::kFirstRerunReproducible:
      return "first_rerun_reproducible";
    case RejectionStatus::kSecondRerunNotReproducible:
      return "second_rerun_not_reproducible";
    case RejectionStatus::kSecondRerunReproducible:
      return "second_rerun_reproducible";
  }
  return "";
}

std::string FormatRejection(const RejectionRecord& record, absl::Time now, absl::TimeZone zone) {
  return absl::StrCat(
      "ts=", absl::FormatTime("%Y-%m-%d %H:%M:%E6S", now, zone), " node=", Plain(record.node),
      " device=", Plain(record.device), " jobID=", Plain(record.job_id), " rank=", record.rank,
      " iteration=", record.iteration, " status=", RejectionStatusName(record.status),
      " result=", record.result, " message='", Plain(record.message), "'");
}

std::optional<RejectionRecord> ParseRejection(absl::string_view line) {
  constexpr std::array<absl::string_view, 9> kFields = {
      "ts=",         " node=",   " device=", " jobID=",   " rank=",
      " iteration=", " status=", " result=", " message='"};
  std::array<absl::string_view, kFields.size()> values;
  size_t at = line.find(kFields[0]);
  for (size_t i = 0; i < kFields.size(); ++i) {
    if (at == absl::string_view::npos) return std::nullopt;
    const size_t begin = at + kFields[i].size();
    at = i + 1 < kFields.size() ? line.find(kFields[i + 1], begin) : line.rfind('\'');
    if (at == absl::string_view::npos || at < begin) return std::nullopt;
    values[i] = line.substr(begin, at - begin);
  }
  RejectionRecord record{.node = std::string(values[1]),
                         .device = std::string(values[2]),
                         .job_id = std::string(values[3]),
                         .message = std::string(values[8])};
  const std::optional<RejectionStatus> status = ParseStatus(values[6]);
  if (!status.has_value() || !absl::SimpleAtoi(values[4], &record.rank) ||
      !absl::SimpleAtoi(values[5], &record.iteration) ||
      !absl::SimpleAtod(values[7], &record.result)) {
    return std::nullopt;
  }
  record.status = *status;
  return record;
}

std::vector<int64_t> IterationsToSkip(absl::string_view tracker_file) {
  std::map<std::pair<int64_t, int>, int> times;                        // by iteration, rank
  std::map<std::pair<int64_t, std::string>, std::set<int>> reporters;  // by iteration, job
  for (const absl::string_view line : absl::StrSplit(tracker_file, '\n')) {
    const std::optional<RejectionRecord> record = ParseRejection(line);
    if (!record.has_value() || !Repeats(record->status)) continue;
    ++times[{record->iteration, record->rank}];
    reporters[{record->iteration, record->job_id}].insert(record->rank);
  }
  std::set<int64_t> skip;
  for (const auto& [where, count] : times) {
    if (count >= 2) skip.insert(where.first);
  }
  for (const auto& [where, ranks] : reporters) {
    if (ranks.size() > 1) skip.erase(where.first);
  }
  return {skip.begin(), skip.end()};
}

}  // namespace muster
