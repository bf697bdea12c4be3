// JobMachine's part that knows which workers the job holds, beside those of its ranks, too.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "coordinator/core/job_machine.h"

namespace muster {

void JobMachine::Release(RankSlot* slot, int64_t epoch, int rank, JobEffects* effects) {
  if (!slot->held) return;
  MUSTER_CHECK(slot->trainer != RankSlot::Trainer::kLaunched);
  slot->held = false;
  --num_held_;
  effects->emplace_back(ReleaseWorker{slot->worker, epoch, rank});
}

void JobMachine::ReleaseVacant(JobEffects* effects) {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    RankSlot& slot = ranks_[rank];
    if (!slot.held || slot.trainer == RankSlot::Trainer::kLaunched) continue;
    RankChanged(rank);
    Release(&slot, epoch_, rank, effects);
  }
  for (ExtraSlot& extra : extras_) {
    if (extra.slot.trainer == RankSlot::Trainer::kLaunched) continue;
    Release(&extra.slot, extra.epoch, extra.rank, effects);
    unsaved_.epoch = true;
  }
  std::erase_if(extras_, [](const ExtraSlot& extra) { return !extra.slot.held; });
}

void JobMachine::AddSpares(std::vector<RankSlot> workers, absl::Time now, JobEffects* effects) {
  if (ended() || workers.empty()) return;
  std::vector<std::string> names;
  for (RankSlot& slot : workers) {
    names.push_back(slot.worker);
    // A job whose epoch is over launches them with its next one.
    slot.trainer = aborted_ ? RankSlot::Trainer::kNone : RankSlot::Trainer::kLaunched;
    num_launched_ += slot.trainer == RankSlot::Trainer::kLaunched;
    slot.held = true;
    ++num_held_;
    extras_.push_back({.epoch = epoch_, .slot = std::move(slot)});
    if (!aborted_) effects->emplace_back(LaunchSpare{names.back()});
  }
  unsaved_.epoch = true;
  AddEvent(now, "spare", absl::StrCat("holds ", absl::StrJoin(names, ", "), " as spare"));
  Changed();
}

void JobMachine::ReleaseSpare(const std::string& worker, const std::string& reason, absl::Time now,
                              JobEffects* effects) {
  for (ExtraSlot& extra : extras_) {
    if (extra.slot.worker != worker || extra.role != ExtraSlot::Role::kSpare) continue;
    AddEvent(now, "spare_released", reason);
    unsaved_.epoch = true;
    Changed();
    if (extra.slot.trainer != RankSlot::Trainer::kLaunched) return DropExtra(worker, effects);
    extra.role = ExtraSlot::Role::kLeaving;
    extra.slot.condemned = true;
    return StopExtra(extra, reason, effects);
  }
}

void JobMachine::OnExtraReport(const std::string& worker, const ReportBody& body, absl::Time now,
                               JobEffects* effects) {
  const auto found = std::find_if(extras_.begin(), extras_.end(), [&](const ExtraSlot& extra) {
    return extra.slot.worker == worker;
  });
  if (found == extras_.end() || found->slot.trainer != RankSlot::Trainer::kLaunched) return;
  RankSlot& slot = found->slot;
  slot.last_report = now;
  const bool helps = found->role == ExtraSlot::Role::kHelper;
  if (const auto* log = std::get_if<LogLines>(&body)) {
    history_.AddLogLines(found->rank, found->epoch, worker, log->lines, now);
    return;
  }
  if (const auto* phase = std::get_if<PhaseMessage>(&body)) {
    slot.phase = phase->phase.substr(0, kMaxPhaseName);
  } else if (const auto* event = std::get_if<EventMessage>(&body)) {
    AddEvent(now, event->kind, absl::StrCat(worker, ": ", event->text));
  } else if (std::holds_alternative<DoneMessage>(body)) {
    slot.done = std::get<DoneMessage>(body);
    slot.phase = "done";
    if (helps && !ended()) StopExtra(*found, "its state was given to others", effects);
  } else if (const auto* failed = std::get_if<FailedMessage>(&body)) {
    slot.phase = "failed";
    AddEvent(now, "extra_failed", absl::StrCat(worker, ": ", failed->reason));
    const ExtraSlot gone = *found;  // what follows may move it
    OnExtraGone(gone, absl::StrCat("worker ", worker, ": ", failed->reason), failed->collective,
                now, effects);
    if (helps && !ended()) StopExtra(gone, failed->reason, effects);
  } else if (const auto* exited = std::get_if<ExitedReport>(&body)) {
    slot.trainer = RankSlot::Trainer::kExited;
    slot.phase = "exited";
    --num_launched_;
    const ExtraSlot gone = *found;  // what follows may move it
    const bool expected =
        slot.done.has_value() || ended() || found->role == ExtraSlot::Role::kLeaving;
    if (expected || helps) DropExtra(worker, effects);
    const std::string text =
        absl::StrCat("worker ", worker, ": the trainer ", HowItExited(*exited));
    if (!expected) {
      AddEvent(now, "spare_exited", text);
      OnExtraGone(gone, text, false, now, effects);
    }
  } else {
    return;
  }
  unsaved_.epoch = true;
  Changed();
}

void JobMachine::OnExtraLost(const std::string& worker, const std::string& reason, absl::Time now,
                             JobEffects* effects) {
  const ExtraSlot* found = FindExtra(worker);
  if (found == nullptr) return;
  const ExtraSlot gone = *found;
  if (gone.slot.trainer == RankSlot::Trainer::kLaunched) --num_launched_;
  const_cast<ExtraSlot*>(found)->slot.trainer = RankSlot::Trainer::kExited;
  DropExtra(worker, effects);
  const std::string text = absl::StrCat("spare worker ", worker, " was lost: ", reason);
  if (!ended() && gone.role == ExtraSlot::Role::kSpare) AddEvent(now, "spare_lost", text);
  if (!gone.slot.done.has_value()) OnExtraGone(gone, text, false, now, effects);
  Changed();
}

// A helper is a member of the epoch's first exchange; once the ranks have their state it is
// nobody's loss.
void JobMachine::OnExtraGone(const ExtraSlot& gone, const std::string& text, bool symptom,
                             absl::Time now, JobEffects* effects) {
  if (gone.role != ExtraSlot::Role::kHelper || gone.epoch != epoch_) return;
  if (!IsActive(state_) || aborted_ || stepped_ || num_early() == 0) return;
  FailureCause cause;
  cause.worker = gone.slot.worker;
  cause.node = gone.slot.node;
  cause.text = text;
  cause.iteration = iteration_;
  cause.epoch = epoch_;
  cause.time = now;
  cause.symptom = symptom;
  OnFailure(std::move(cause), now, effects);
}

void JobMachine::StopExtra(const ExtraSlot& extra, const std::string& reason, JobEffects* effects) {
  if (extra.slot.trainer != RankSlot::Trainer::kLaunched) return;
  effects->emplace_back(StopOne{extra.slot.worker, extra.slot.incarnation, reason, extra.epoch});
}

void JobMachine::StopLateHelpers(absl::Time now, JobEffects* effects) {
  if (!stepped_ || incident_.open || now - incident_.loaded_at < options_.exit_limit) return;
  for (ExtraSlot& extra : extras_) {
    if (extra.role != ExtraSlot::Role::kHelper || extra.slot.condemned) continue;
    extra.slot.condemned = true;
    unsaved_.epoch = true;
    StopExtra(extra, "its state was given to others", effects);
  }
}

void JobMachine::DropExtra(const std::string& worker, JobEffects* effects) {
  for (ExtraSlot& extra : extras_) {
    if (extra.slot.worker == worker) Release(&extra.slot, extra.epoch, extra.rank, effects);
  }
  std::erase_if(extras_, [](const ExtraSlot& extra) { return !extra.slot.held; });
  unsaved_.epoch = true;
}

}  // namespace muster
