// JobMachine's part that measures a recovery: the time of each part, from the failure to the first
// step after it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(std::max(duration, absl::ZeroDuration())) / 1000.0,
                      "s");
}

}  // namespace

void JobMachine::NoteParts(absl::Time now) {
  if (!incident_.open || aborted_) return;
  const auto note = [&](absl::Time* part, int num_missing) {
    if (*part >= incident_.failed_at || num_missing > 0) return;
    *part = now;
    unsaved_.state = true;
  };
  const int num_started = NumIn(RankStage::kStart), num_forming = NumIn(RankStage::kForming);
  note(&incident_.started_at, stepped_ ? 0 : num_started);
  note(&incident_.formed_at, stepped_ ? 0 : num_started + num_forming);
  note(&incident_.loaded_at, stepped_ ? 0 : num_early());
}

void JobMachine::EndIncident(absl::Time now) {
  Incident& in = incident_;
  if (in.launched_at < in.failed_at) return;  // nothing was done about it yet
  in.open = false;
  reason_.clear();
  const absl::Duration total = now - in.failed_at;
  // Trainers know better how long the parts took that are theirs.
  absl::Duration form = in.formed_at - in.started_at, state = in.loaded_at - in.formed_at;
  absl::Duration first_step = now - in.loaded_at;
  std::string from = "unknown";
  int64_t redone = 0;
  if (in.restored.has_value()) {
    form = absl::Milliseconds(in.restored->form_ms);
    state = absl::Milliseconds(in.restored->state_ms);
    from = absl::StrCat(in.restored->source, " state at iteration ", in.restored->iteration);
    redone = std::max<int64_t>(0, in.iteration - in.restored->iteration);
  }
  const std::string text = absl::StrCat(
      in.what, "; total=", Seconds(total), " abort=", Seconds(in.aborted_at - in.failed_at),
      " plan=", Seconds(in.launched_at - in.aborted_at),
      " process=", Seconds(in.started_at - in.launched_at), " form=", Seconds(form),
      " state=", Seconds(state), " first_step=", Seconds(first_step), "; from ", from,
      ", steps_redone=", redone);
  AddEvent(now, in.planned ? "reformed" : "recovered", text);
  totals_.count_by_kind[in.kind.empty() ? "reform" : in.kind] += 1;
  if (!in.planned) totals_.seconds += absl::ToDoubleSeconds(total);
  Changed();
}

}  // namespace muster
