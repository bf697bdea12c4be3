#include "cli/patience.h"

#include "absl/strings/str_cat.h"
#include "cli/output.h"

namespace muster {

bool IsAway(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded;
}

bool Patience::AskAgain(const absl::Status& status, absl::Duration now) {
  if (!IsAway(status)) {
    if (status.ok() && away_) {
      note_(absl::StrCat("the coordinator is back after ",
                         FormatSeconds(absl::ToDoubleSeconds(now - *last_answer_))));
      away_ = false;
    }
    if (status.ok()) last_answer_ = now;
    return false;
  }
  if (!last_answer_.has_value() || now - *last_answer_ > limit_) return false;
  if (!away_) note_("coordinator away, training goes on; retrying");
  away_ = true;
  return true;
}

}  // namespace muster
