// JobMachine's part that carries out changes of places that were asked for: see job_moves.h.
#include "coordinator/core/job_moves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rerun/examination.h"
#include "coordinator/core/job_machine.h"

namespace muster {

absl::Status JobMachine::RequestChange(PlannedChange change, absl::Time now) {
  if (!IsActive(state_) || IsForming() || aborted_ || cancel_.has_value() || some_are_done()) {
    return absl::FailedPreconditionError(absl::StrCat(
        job_id(), " is ", JobStateName(state_), cancel_.has_value() ? " and is cancelled" : "",
        some_are_done() ? " and is about to end" : "", ": its ranks are not moved now"));
  }
  if (change_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_id(), " is about to change places already: ", change_->reason));
  }
  change.stage = PlannedChange::Stage::kWarming;
  change.deadline = now + options_.warm_limit;
  AddEvent(now, "change_planned", change.reason);
  change_ = std::move(change);
  Changed();
  return absl::OkStatus();
}

void JobMachine::CheckChange(absl::Time now, JobEffects* effects) {
  if (!change_.has_value() || aborted_ || limits_stand_still_) return;
  PlannedChange& change = *change_;
  if (change.stage == PlannedChange::Stage::kYielding) {
    if (change.deadline > now || change.overdue) return;
    change.overdue = true;
    AddEvent(now, "not_yielded",
             absl::StrCat("ranks have not come to the end of their step within ",
                          ShortDuration(options_.yield_limit), " for: ", change.reason));
    Abort(change.reason, effects);
    Changed();
    return;
  }
  const bool warm = std::all_of(change.needs_spares.begin(), change.needs_spares.end(),
                                [&](const std::string& worker) {
                                  const ExtraSlot* spare = FindExtra(worker);
                                  // One that has died is started with the new epoch.
                                  return spare == nullptr || spare->slot.phase != "launched";
                                });
  if (!warm && change.deadline > now) return;
  if (some_are_done() || cancel_.has_value()) {
    DropChange("the job is about to end", now);
    return;
  }
  const auto directive =
      Request({.kind = Directive::Kind::kReform, .reason = change.reason}, now, effects);
  if (!directive.ok()) {
    DropChange(std::string(directive.status().message()), now);
    return;
  }
  change.stage = PlannedChange::Stage::kYielding;
  change.directive = directive->number;
  // A step that has begun may end, as far as one knows how long that takes.
  const PhaseLimits& limits = clock_.limits();
  const bool learned = limits.Samples(WaitPhase::kStep).count > 0;
  change.deadline = now + options_.yield_limit +
                    (learned ? limits.Limit(WaitPhase::kStep) : absl::ZeroDuration());
  Changed();
}

bool JobMachine::change_is_due() const {
  return change_.has_value() && change_->stage == PlannedChange::Stage::kYielding &&
         IsActive(state_) && !limits_stand_still_ &&
         (change_->overdue || NumIn(RankStage::kYielded) == world_size());
}

void JobMachine::NoteYielded(absl::Time now) {
  if (aborted_ || NumIn(RankStage::kYielded) != world_size()) return;
  if (!change_.has_value() || change_->stage != PlannedChange::Stage::kYielding) {
    // The order was given before a failure, and the change was dropped.
    change_ = {.kind = PlannedChange::Kind::kReform,
               .stage = PlannedChange::Stage::kYielding,
               .reason = "all ranks have yielded"};
  }
  // It was applied, and with it all before.
  int64_t through = change_->directive;
  for (const Directive& directive : directives_.After(directives_.applied())) {
    if (through == 0 && directive.kind == Directive::Kind::kReform) through = directive.number;
  }
  directives_.Applied(through);
  Changed();
}

void JobMachine::SetExamination(std::vector<RankMove> moves, std::string examine_json,
                                const std::string& reason) {
  change_->kind = PlannedChange::Kind::kMove;
  change_->moves = std::move(moves);
  change_->examine_json = std::move(examine_json);
  change_->reason = reason;
  Changed();
}

absl::Status JobMachine::LeaveHeldStep(int64_t iteration, int exit_code, const std::string& reason,
                                       absl::Time now, JobEffects* effects) {
  const auto directive = Request({.kind = Directive::Kind::kCheckpointAndExit,
                                  .reason = reason,
                                  .iteration = iteration,
                                  .exit_code = exit_code},
                                 now, effects);
  RETURN_IF_ERROR(directive.status());
  change_.reset();
  UpdateWait(now);
  Changed();
  return absl::OkStatus();
}

void JobMachine::NoteVerdict(const std::string& verdict, const std::string& evidence,
                             absl::Time now) {
  totals_.rerun_verdicts[verdict] += 1;
  AddEvent(now, absl::StrCat("rerun_", verdict), evidence);
  Changed();
}

void JobMachine::NoteDrainWaits(const std::string& text, absl::Time now) {
  if (text == drain_waits_) return;
  drain_waits_ = text;
  if (!text.empty()) AddEvent(now, "drain_waits", text);
  Changed();
}

void JobMachine::DropChange(const std::string& why, absl::Time now) {
  if (!change_.has_value()) return;
  AddEvent(now, "change_dropped", absl::StrCat(change_->reason, ": ", why));
  change_.reset();
  Changed();
}

}  // namespace muster
