#include "coordinator/core/silence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// To a tenth of a second: reasons are for people.
std::string Text(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

}  // namespace

SilenceDecision DecideSilence(const Silence& s) {
  const absl::Duration quiet = s.now - s.last_sign;
  const std::string silent = absl::StrCat("no sign of life for ", Text(quiet));
  if (!s.trains) {  // a
    return {true, s.closed_at.has_value() ? absl::StrCat(silent, ", its stream is gone") : silent};
  }
  const absl::Duration stuck = s.now - std::max(s.last_sign, s.last_progress);
  if (s.closed_at.has_value()) {                                                   // c
    const bool outlived = s.last_progress > *s.closed_at + kTrainersOutliveAgent;  // b
    if (!outlived && stuck > s.timeout) {
      return {true, absl::StrCat("its stream ended ", Text(s.now - *s.closed_at),
                                 " ago and it did not come back")};
    }
  }
  if (s.last_progress > s.last_sign && stuck <= std::max(s.timeout, s.patience)) {  // b
    return {false, absl::StrCat(silent, "; kept, for its job makes progress")};
  }
  if (!s.others_heard) {  // e
    if (quiet > s.limit) {
      return {true, absl::StrCat(silent, ", and nobody else of its job was heard")};
    }
    return {false, absl::StrCat(silent,
                                "; kept, for nobody of its job is heard: the network "
                                "between may be cut")};
  }
  const absl::Duration waited = std::min(stuck, s.now - s.heard_since);
  if (waited > std::max(s.timeout, s.patience)) {  // d
    return {true, absl::StrCat(silent, ", and its job has made no progress for ", Text(waited))};
  }
  return {false, absl::StrCat(silent, "; kept until its job has made no progress for ",
                              Text(std::max(s.timeout, s.patience)))};
}

}  // namespace muster
