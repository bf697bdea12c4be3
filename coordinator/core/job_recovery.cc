// JobMachine's part that judges failures and takes the job from one epoch to the next.
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitCancelled = 130;
constexpr size_t kMaxFollowed = 6, kMaxHitWorkers = 256;

// The next step would be the same one for the same reason; 16 and 17 are Megatron's: rerun
// elsewhere to tell, result validation failed.
bool IsVerdictOfRerun(const FailureCause& cause) {
  const int code = cause.exit_code.value_or(0);
  return code == 16 || code == 17;
}

}  // namespace

bool JobMachine::wants_plan() const {
  return state_ == JobState::kRecovering && aborted_ && !seeking_cause_ && !limits_stand_still_;
}

std::string JobMachine::OnTheWay() const {
  if (!incident_.open || incident_.planned || causes_.empty()) return "";
  return absl::StrCat("; on the way: ", causes_.newest().text);
}

void JobMachine::NoteCause(FailureCause cause, absl::Time now) {
  unsaved_.cause = true;
  Changed();
  if (!cause.symptom && !cause.worker.empty() && incident_.hit_workers.size() < kMaxHitWorkers) {
    if (!incident_.open || incident_.planned) incident_.hit_workers.clear();
    incident_.hit_workers.push_back(cause.worker);
  }
  if (!incident_.open || incident_.planned) {
    std::vector<std::string> hit = std::move(incident_.hit_workers);
    incident_ = {.open = true,
                 .number = incident_.number + 1,
                 .failed_at = now,
                 .iteration = std::max(iteration_, committed_),
                 .hit_workers = std::move(hit)};
    cause.restarts = restarts_;
    causes_.Begin(std::move(cause), now);
    return;
  }
  if (causes_.Improve(cause)) return;
  if (!cause.symptom && incident_.followed.size() < kMaxFollowed) {
    incident_.followed.push_back(cause.text);
  }
}

void JobMachine::OnFailure(FailureCause cause, absl::Time now, JobEffects* effects) {
  const bool waits_for_plan = state_ == JobState::kRecovering && aborted_ && !seeking_cause_;
  NoteCause(cause, now);
  if (cause.symptom) {
    if (waits_for_plan || seeking_cause_) return;
    seeking_cause_ = true;
    symptom_deadline_ = now + options_.symptom_window;
    reason_ = absl::StrCat(cause.text, "; waiting for its cause");
    Abort(cause.text, effects);
    if (incident_.aborted_at < incident_.failed_at) incident_.aborted_at = now;
    UpdateWait(now);
    return;
  }
  Judge(cause, waits_for_plan, now, effects);
}

void JobMachine::Judge(const FailureCause& cause, bool waits_for_plan, absl::Time now,
                       JobEffects* effects) {
  unsaved_.epoch = unsaved_.epoch || seeking_cause_;
  seeking_cause_ = false;
  symptom_deadline_.reset();
  // What is cancelled need not succeed, except to save: then it recovers, and obeys afterwards.
  if (cancel_.has_value() && !MustSave()) {
    Finish(JobState::kCancelled, kExitCancelled, absl::StrCat(cancel_reason_, OnTheWay()), now,
           effects);
  } else if (IsVerdictOfRerun(cause)) {
    Finish(JobState::kExited, *cause.exit_code, cause.text, now, effects);
  } else if (cause.hopeless) {
    FailForGood("", now, effects);
  } else if (!waits_for_plan) {  // else the plan is made for all
    Recover(cause, now, effects);
  }
}

void JobMachine::Recover(const FailureCause& cause, absl::Time now, JobEffects* effects) {
  const int64_t committed = std::max(iteration_, committed_);
  const bool in_step = !IsForming();
  const RestartVerdict verdict = budget_.OnFailure(
      {.iteration = committed, .in_step = in_step, .by_trainer = cause.by_trainer}, now);
  if (verdict.poisoned) {
    const int64_t step = committed + 1;
    const bool skip = spec_.recovery.skip_poisoned_batch && verdict.restart;
    AddEvent(now, "poisoned_batch",
             absl::StrCat(verdict.reason, skip ? absl::StrCat("; step ", step, " is left out (",
                                                              "recovery.skip_poisoned_batch)")
                                               : ""));
    if (skip &&
        std::find(skipped_steps_.begin(), skipped_steps_.end(), step) == skipped_steps_.end()) {
      skipped_steps_.push_back(step);
    }
  }
  if (!verdict.restart) {
    FailForGood(spec_.recovery.max_restarts > 0 ? verdict.reason : "", now, effects);
    return;
  }
  DropChange("a failure came first", now);
  reason_ = cause.text;
  SetState(JobState::kRecovering, now);
  Abort(cause.text, effects);
  if (incident_.aborted_at < incident_.failed_at) incident_.aborted_at = now;
  UpdateWait(now);
}

void JobMachine::FailForGood(const std::string& what_followed, absl::Time now,
                             JobEffects* effects) {
  causes_.Settle();
  unsaved_.cause = true;
  std::string text = causes_.Text(restarts_);
  for (const std::string& next : incident_.followed) absl::StrAppend(&text, "; then: ", next);
  if (!what_followed.empty()) absl::StrAppend(&text, "; ", what_followed);
  if (cancel_.has_value())
    absl::StrAppend(&text, "; on the way to save and stop: ", cancel_reason_);
  Finish(JobState::kFailed, kExitFailed, text, now, effects);
}

int JobMachine::SilentRank(absl::Time now, const SignsOfLife& signs) const {
  if (!signs.of_agent) return -1;
  int silent = -1;
  bool others_heard = false;
  absl::Time oldest = now - signs.silent_after;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (ranks_[rank].trainer != RankSlot::Trainer::kLaunched) continue;
    const std::optional<absl::Time> heard = signs.of_agent(ranks_[rank].incarnation);
    if (!heard.has_value()) continue;
    if (*heard > now - signs.silent_after) {
      others_heard = true;
    } else if (*heard < oldest) {
      oldest = *heard;
      silent = rank;
    }
  }
  return others_heard ? silent : -1;
}

void JobMachine::GiveUpOnCause(absl::Time now, const SignsOfLife& signs, JobEffects* effects) {
  if (const std::vector<int> slow = SlowRanks(); causes_.newest().symptom && !slow.empty()) {
    // The others' operations have reached their limit for want of these.
    const std::string why = "computes, and the others' operations have waited for it in vain";
    FailureCause late = CauseAt(slow.front(), why, now);
    late.kind = FailureKindName(FailureKind::kTimeout);
    OnFailure(std::move(late), now, effects);
    for (const int rank : slow) CondemnRank(rank, why, now, effects);
    return;
  }
  if (const int silent = SilentRank(now, signs); causes_.newest().symptom && silent >= 0) {
    // Its agent counts as alive, perhaps since another job of it advances; but the others'
    // operations with it have failed.
    FailureCause late =
        CauseAt(silent,
                absl::StrCat("its agent has not been heard for ",
                             ShortDuration(now - *signs.of_agent(ranks_[silent].incarnation)),
                             ", and the others' operations with it have failed (",
                             causes_.newest().text, ")"),
                now);
    late.kind = FailureKindName(FailureKind::kAgentLost);
    OnFailure(std::move(late), now, effects);
    return;
  }
  FailureCause cause;
  if (causes_.newest().symptom) {  // nothing better came: this is the cause
    causes_.Settle();
    unsaved_.cause = true;
    cause = causes_.newest();
  } else {  // that of the incident is known; this time all trainers live
    cause.text = reason_;
    cause.iteration = iteration_;
    cause.epoch = epoch_;
    cause.time = now;
    NoteCause(cause, now);
  }
  Judge(cause, false, now, effects);
}

void JobMachine::OnStuck(int rank, const std::string& text, absl::Time now, JobEffects* effects) {
  FailureCause cause = CauseAt(rank, text, now);
  cause.kind = FailureKindName(FailureKind::kTimeout);
  OnFailure(cause, now, effects);
  if (state_ != JobState::kRecovering) return;
  // Whoever is behind the others cannot be trusted to come along now.
  const bool early = num_early() > 0 && num_early() < world_size();
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    if (r == rank || (early && ranks_[r].stage <= RankStage::kLoad)) {
      CondemnRank(r, text, now, effects);
    }
  }
}

void JobMachine::CondemnRank(int rank, const std::string& reason, absl::Time now,
                             JobEffects* effects) {
  RankSlot& slot = ranks_[rank];
  if (ended() || slot.trainer != RankSlot::Trainer::kLaunched || slot.condemned) return;
  slot.condemned = true;
  RankChanged(rank);
  exit_deadline_ = now + options_.exit_limit;
  effects->emplace_back(StopOne{slot.worker, slot.incarnation, reason, epoch_});
}

absl::Status JobMachine::Condemn(int rank, FailureKind kind, const std::string& text,
                                 absl::Time now, JobEffects* effects) {
  if (!IsActive(state_) || aborted_ || rank < 0 || rank >= static_cast<int>(ranks_.size())) {
    return absl::FailedPreconditionError(absl::StrCat(job_id(), " is ", JobStateName(state_),
                                                      " and has no rank ", rank, " to stop"));
  }
  FailureCause cause = CauseAt(rank, text, now);
  cause.kind = FailureKindName(kind);
  AddEvent(now, "condemned", text, rank);
  OnFailure(std::move(cause), now, effects);
  CondemnRank(rank, text, now, effects);
  return absl::OkStatus();
}

void JobMachine::CheckRecovery(absl::Time now, JobEffects* effects) {
  if (exit_deadline_.has_value() && *exit_deadline_ <= now) {
    exit_deadline_.reset();  // the next plan goes without those workers
    Changed();
  }
  StopLateHelpers(now, effects);
  if (workers_deadline_.has_value() && *workers_deadline_ <= now && wants_plan()) {
    FailForGood(absl::StrCat("no workers came within ",
                             ShortDuration(absl::Seconds(spec_.recovery.wait_for_workers_s)),
                             " (recovery.wait_for_workers_s): ", waits_for_),
                now, effects);
  }
}

void JobMachine::WaitForWorkers(const std::string& reason, absl::Time now) {
  if (!workers_deadline_.has_value()) {
    workers_deadline_ = now + absl::Seconds(spec_.recovery.wait_for_workers_s);
    AddEvent(now, "waiting", reason);
    Changed();
  }
  if (waits_for_ == reason) return;
  waits_for_ = reason;
  reason_ = absl::StrCat(causes_.empty() ? "" : absl::StrCat(causes_.newest().text, "; "), reason);
  Changed();
}

bool JobMachine::MustSave() const {
  return cancel_ == CancelMode::kCheckpointAndStop && spec_.checkpoint.save.has_value() &&
         HasTrained();
}

void JobMachine::RepeatStop(absl::Time now) {
  const Directive* stop = directives_.LastStop();
  // One that no step has applied yet is sent again as it is.
  if (stop == nullptr || stop->number > directives_.applied()) return;
  Directive again = *stop;
  const auto given = directives_.Append(std::move(again));
  AddEvent(now, "directive",
           given.ok() ? absl::StrCat(given->number, ": ", DirectiveKindName(given->kind),
                                     ", again after a failure")
                      : std::string(given.status().message()));
}

void JobMachine::Raise(EpochPlan plan, absl::Time now, JobEffects* effects) {
  MUSTER_CHECK(IsActive(state_));
  const bool planned = state_ != JobState::kRecovering;
  // Trainers that have no place any more: condemned ones whose end was not heard of.
  std::vector<ExtraSlot> leaving;
  const auto stays = [&](const std::string& worker) {
    for (const RankSlot& slot : plan.ranks) {
      if (slot.worker == worker) return true;
    }
    for (const ExtraSlot& extra : plan.extras) {
      if (extra.slot.worker == worker) return true;
    }
    return false;
  };
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankSlot& slot = ranks_[rank];
    if (slot.trainer != RankSlot::Trainer::kLaunched || !slot.condemned) continue;
    if (stays(slot.worker)) continue;
    leaving.push_back({ExtraSlot::Role::kLeaving, rank, epoch_, slot});
  }
  for (const ExtraSlot& extra : extras_) {
    if (extra.role == ExtraSlot::Role::kLeaving || stays(extra.slot.worker)) continue;
    if (extra.slot.trainer != RankSlot::Trainer::kLaunched) continue;
    leaving.push_back(extra);
    leaving.back().role = ExtraSlot::Role::kLeaving;
  }
  for (ExtraSlot& gone : leaving) StopExtra(gone, "its place was given to another", effects);
  if (planned) {
    incident_ = {.open = true,
                 .planned = true,
                 .number = incident_.number,
                 .failed_at = now,
                 .aborted_at = now,
                 .iteration = std::max(iteration_, committed_)};
  } else {
    ++restarts_;
  }
  incident_.launched_at = now;
  incident_.started_at = incident_.formed_at = incident_.loaded_at = absl::InfinitePast();
  incident_.restored.reset();
  incident_.what = plan.reason;
  incident_.kind = plan.change;
  change_.reset();
  workers_deadline_.reset();
  exit_deadline_.reset();
  waits_for_.clear();
  if (plan.data_parallel_size > data_parallel_size_) grew_at_ = now;
  RepeatStop(now);
  TakePlaces(std::move(plan));
  for (ExtraSlot& gone : leaving) extras_.push_back(std::move(gone));
  RecountRanks();
  if (planned) {
    reason_ = incident_.what;
    SetState(JobState::kForming, now);
  }
  AddEvent(now, planned ? "reforming" : "restarting",
           absl::StrCat("epoch ", epoch_, ": ", incident_.what));
  UpdateWait(now);
  Changed();
  effects->emplace_back(LaunchRanks{});
  // Those before were applied; living trainers have heard these already, new ones have not.
  for (const Directive& directive : directives_.After(directives_through_)) {
    effects->emplace_back(PublishDirective{directive});
  }
}

}  // namespace muster
