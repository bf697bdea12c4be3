#include "cli/event_lines.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

// What is said instead of the kind. The texts of most name their ranks and workers.
struct Shown {
  absl::string_view kind, heading;
};
constexpr Shown kShown[] = {
    {"loaded", "loaded: "},
    {"skipped", "skipped: "},
    {"checkpoint_failed", "a save failed: "},
    {"recovering", "failed, recovers: "},
    {"restarting", "starts again, "},
    {"reforming", "changes places, "},
    {"change_planned", "about to change places: "},
    {"waiting", "waits: "},
    {"drain_waits", ""},
    {"hang", "hang: "},
    {"suspect", "silent: "},
    {"heard_again", ""},
    {"node_lost", "lost: "},
    {"agent_lost", "lost: "},
    {"straggler", "slow: "},
    {"straggler_over", "as fast as the others again: "},
    {"quarantined", "quarantine: "},
    {"poisoned_batch", "suspected batch: "},
    {"wrong_resume", ""},
    {"ledger_gap", "reports lost: "},
    {"out_of_memory", "out of memory: "},
    {"disk_full", "the disk is full: "},
};

// "rank 1 in place on b/0; total=0.3s abort=0s ...; from live state at iteration 3, steps_redone=0"
std::string Mended(absl::string_view how, absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, "; ");
  absl::string_view what = parts[0], total, from;
  for (const absl::string_view part : parts) {
    if (absl::StartsWith(part, "total=")) {
      total = absl::StripPrefix(part.substr(0, part.find(' ')), "total=");
    } else if (absl::StartsWith(part, "from ")) {
      from = part;
    }
  }
  if (total.empty()) return absl::StrCat(how, ": ", text);  // of another version
  const std::vector<absl::string_view> halves = absl::StrSplit(from, ", steps_redone=");
  const absl::string_view redone = halves.size() == 2 ? halves[1] : "0";
  return absl::StrCat(how, " after ", total, ": ", what, from.empty() ? "" : ", ", halves[0],
                      redone == "0" ? "" : absl::StrCat(", ", redone, " steps run again"));
}

}  // namespace

std::string WatchLine(const v1::Event& event) {
  if (event.kind() == "recovered") return Mended("recovered", event.text());
  if (event.kind() == "reformed") return Mended("goes on", event.text());
  if (absl::StartsWith(event.kind(), "rerun_")) {
    return absl::StrCat("rerun, ", absl::StripPrefix(event.kind(), "rerun_"), ": ", event.text());
  }
  for (const Shown& shown : kShown) {
    if (event.kind() == shown.kind) return absl::StrCat(shown.heading, event.text());
  }
  return "";
}

std::vector<std::string> WatchLines(const google::protobuf::RepeatedPtrField<v1::Event>& events,
                                    const std::string& job_id, size_t most) {
  std::vector<std::string> lines;
  for (const v1::Event& event : events) {
    std::string line = WatchLine(event);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  if (lines.size() <= most) return lines;
  const size_t hidden = lines.size() - most;
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(hidden));
  lines.insert(lines.begin(), absl::StrCat(hidden, hidden == 1 ? " event" : " events",
                                           " before these: muster events ", job_id));
  return lines;
}

}  // namespace muster
