#include "coordinator/core/job_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"

namespace muster {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitCancelled = 130;  // as a shell says for SIGINT

}  // namespace

JobMachine::JobMachine(Identity identity, JobSpec spec, int64_t train_iters,
                       const JobOptions& options, absl::Time now)
    : JobFacts(std::move(identity), std::move(spec), train_iters, options, now) {
  AddEvent(now, "submitted",
           absl::StrCat("job \"", spec_.name, "\" with ", world_size(), " ranks"));
  unsaved_.identity = true;
  unsaved_.state = true;
}

void JobMachine::Enqueue(absl::Time now) {
  MUSTER_CHECK(state_ == JobState::kSubmitted);
  SetState(JobState::kQueued, now);
}

void JobMachine::SetQueueReason(const std::string& reason) {
  if (state_ != JobState::kQueued || reason_ == reason) return;
  reason_ = reason;
  Changed();
}

void JobMachine::Start(EpochPlan plan, absl::Time now, JobEffects* effects) {
  MUSTER_CHECK(state_ == JobState::kQueued);
  MUSTER_CHECK(static_cast<int>(plan.ranks.size()) == world_size());
  TakePlaces(std::move(plan));
  reason_.clear();
  if (!started_at_.has_value()) started_at_ = now;
  SetState(JobState::kForming, now);
  UpdateWait(now);
  effects->emplace_back(LaunchRanks{});
}

void JobMachine::TakePlaces(EpochPlan plan) {
  std::erase_if(extras_,
                [](const ExtraSlot& extra) { return extra.role != ExtraSlot::Role::kLeaving; });
  ++epoch_;
  ranks_ = std::move(plan.ranks);
  for (RankSlot& slot : ranks_) {
    slot.trainer = RankSlot::Trainer::kLaunched;
    slot.held = true;
  }
  for (ExtraSlot& extra : plan.extras) {
    extra.epoch = epoch_;
    extra.slot.trainer = RankSlot::Trainer::kLaunched;
    extra.slot.held = true;
    extras_.push_back(std::move(extra));
  }
  if (plan.data_parallel_size != data_parallel_size_) layout_epoch_ = epoch_;
  data_parallel_size_ = plan.data_parallel_size;
  spec_override_ = std::move(plan.spec_json);
  examine_json_ = std::move(plan.examine_json);
  RecountRanks();
  stepped_ = false;
  committed_ = 0;
  agent_iteration_.clear();
  unique_id_.clear();
  aborted_ = seeking_cause_ = false;
  directives_through_ = directives_.applied();
  unsaved_.epoch = true;
  AllRanksChanged();
}

void JobMachine::FinishDone(absl::Time now, JobEffects* effects) {
  int code = 0;
  std::string reason = ranks_[0].done->reason;
  for (const RankSlot& slot : ranks_) {
    if (slot.done->exit_code > code) {
      code = slot.done->exit_code;
      reason = slot.done->reason;
    }
  }
  if (incident_.open && !aborted_) EndIncident(now);
  const bool trained = train_iters_ > 0 && iteration_ >= train_iters_;
  if (code != 0) {
    Finish(JobState::kExited, code, reason, now, effects);
  } else if (cancel_.has_value() && !trained) {
    Finish(JobState::kCancelled, kExitCancelled, cancel_reason_, now, effects);
  } else {
    Finish(JobState::kCompleted, 0, reason, now, effects);
  }
}

void JobMachine::Abort(const std::string& reason, JobEffects* effects) {
  if (aborted_) return;
  aborted_ = true;
  unsaved_.epoch = true;
  effects->emplace_back(AbortEpoch{reason});
  effects->emplace_back(EndRendezvous{reason});
}

void JobMachine::Finish(JobState state, int exit_code, const std::string& reason, absl::Time now,
                        JobEffects* effects) {
  MUSTER_CHECK(!ended() && IsEnded(state));
  reason_ = reason;
  exit_code_ = exit_code;
  ended_at_ = now;
  symptom_deadline_.reset();
  cancel_deadline_.reset();
  workers_deadline_.reset();
  exit_deadline_.reset();
  change_.reset();
  if (num_launched_ > 0) release_deadline_ = now + options_.stop_grace + options_.release_limit;
  const bool in_order = state == JobState::kCompleted || state == JobState::kExited ||
                        (state == JobState::kCancelled && num_done_ == world_size());
  if (!ranks_.empty()) {
    if (in_order) {
      aborted_ = true;  // nothing of this epoch is accepted any more
      unsaved_.epoch = true;
      effects->emplace_back(EndRendezvous{reason});
    } else {
      Abort(reason, effects);
    }
    effects->emplace_back(StopRanks{});
    ReleaseVacant(effects);
  }
  SetState(state, now);
  UpdateWait(now);
}

absl::StatusOr<Directive> JobMachine::Request(const Directive& wanted, absl::Time now,
                                              JobEffects* effects) {
  if (!IsActive(state_) || aborted_) {
    return absl::FailedPreconditionError(absl::StrCat(job_id(), " is ", JobStateName(state_),
                                                      " and does not train now",
                                                      reason_.empty() ? "" : ": ", reason_));
  }
  if (const int64_t iterations = wanted.iterations.value_or(0);
      wanted.kind == Directive::Kind::kTrace &&
      (iterations < 1 || iterations > kMaxTracedIterations)) {
    return absl::InvalidArgumentError(
        absl::StrCat("iterations=", iterations, ": must be 1 to ", kMaxTracedIterations));
  }
  const bool saves = wanted.kind == Directive::Kind::kCheckpoint ||
                     wanted.kind == Directive::Kind::kCheckpointAndStop;
  if (saves && !spec_.checkpoint.save.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_id(), " has no folder to save to: its spec sets no checkpoint.save"));
  }
  return Give(wanted, now, effects);
}

absl::StatusOr<Directive> JobMachine::Give(const Directive& wanted, absl::Time now,
                                           JobEffects* effects) {
  ASSIGN_OR_RETURN(Directive directive, directives_.Append(wanted));
  AddEvent(now, "directive",
           absl::StrCat(directive.number, ": ", DirectiveKindName(directive.kind),
                        directive.reason.empty() ? "" : ", ", directive.reason));
  if (!aborted_) effects->emplace_back(PublishDirective{directive});  // else the next epoch gets it
  Changed();
  return directive;
}

void JobMachine::Cancel(CancelMode mode, const std::string& reason, absl::Time now,
                        JobEffects* effects) {
  if (ended()) return;
  if (cancel_.has_value() && mode <= *cancel_) return;
  cancel_ = mode;
  cancel_reason_ = reason.empty() ? "cancelled" : absl::StrCat("cancelled: ", reason);
  AddEvent(now, "cancel_requested", cancel_reason_);
  Changed();
  // What it has trained is to be saved, also when it recovers just now.
  const bool must_save = MustSave();
  const bool nothing_to_stop =
      state_ == JobState::kSubmitted || state_ == JobState::kQueued || (IsForming() && !must_save);
  if (mode == CancelMode::kKill || nothing_to_stop) {
    Finish(JobState::kCancelled, kExitCancelled, absl::StrCat(cancel_reason_, OnTheWay()), now,
           effects);
    return;
  }
  if (aborted_ && !must_save) return;  // it has stopped; the search for the cause ends it soon
  const bool save = mode == CancelMode::kCheckpointAndStop && spec_.checkpoint.save.has_value();
  const auto directive =
      Give({.kind = save ? Directive::Kind::kCheckpointAndStop : Directive::Kind::kStop,
            .reason = cancel_reason_},
           now, effects);
  if (!directive.ok()) {  // the log is full: trainers do not listen
    Finish(JobState::kCancelled, kExitCancelled, cancel_reason_, now, effects);
    return;
  }
  absl::Duration limit = save ? options_.checkpoint_and_stop_limit : options_.stop_limit;
  // A step boundary comes only after what it does now.
  if (state_ == JobState::kCheckpointing) {
    limit = std::max(limit, options_.checkpoint_and_stop_limit);
  } else if (state_ == JobState::kEvaluating) {
    limit = std::max(limit, std::min(clock_.limits().Limit(WaitPhase::kEvaluation),
                                     options_.checkpoint_and_stop_limit));
  }
  cancel_deadline_ = now + limit;
}

void JobMachine::Tick(absl::Time now, JobEffects* effects, const SignsOfLife& signs) {
  SkipStandstill(now);
  const auto passed = [&](const std::optional<absl::Time>& limit) {
    return limit.has_value() && *limit <= now;
  };
  if (limits_stand_still_) return;
  if (ended()) {
    if (passed(release_deadline_)) TellToStopAgain(now, signs, effects);
    return;
  }
  if (!IsActive(state_)) return;
  // A node whose death is the cause counts as lost by then.
  const absl::Duration longer = signs.silent_after + absl::Seconds(1) - options_.symptom_window;
  if (symptom_deadline_.has_value() &&
      *symptom_deadline_ + std::max(longer, absl::ZeroDuration()) <= now) {
    GiveUpOnCause(now, signs, effects);
  } else if (passed(cancel_deadline_)) {
    const MissingReport missing = DescribeMissing(Missing(signs), now, signs.silent_after);
    Finish(JobState::kCancelled, kExitCancelled,
           absl::StrCat(cancel_reason_, "; its trainers did not stop in time and were killed: ",
                        missing.text, OnTheWay()),
           now, effects);
    Changed();
  } else {
    CheckWait(now, signs, effects);
  }
  if (IsActive(state_)) CheckRecovery(now, effects);
  if (IsActive(state_)) CheckChange(now, effects);
}

void JobMachine::SkipStandstill(absl::Time now) {
  const absl::Duration away = now - ticked_at_;
  const bool stood_still = ticked_at_ != absl::InfinitePast() && away > options_.standstill;
  ticked_at_ = now;
  seen_at_ = std::max(seen_at_, now);
  if (!stood_still) return;
  unsaved_.state = true;
  clock_.Skip(away, now);
  for (auto* deadline : {&symptom_deadline_, &cancel_deadline_, &release_deadline_,
                         &workers_deadline_, &exit_deadline_}) {
    if (deadline->has_value()) **deadline += away;
  }
}

void JobMachine::TellToStopAgain(absl::Time now, const SignsOfLife& signs, JobEffects* effects) {
  release_deadline_.reset();
  if (num_launched_ == 0) return;
  release_deadline_ = now + 2 * options_.release_limit;
  if (!not_released_noted_) {
    const MissingReport missing = DescribeMissing(Missing(signs), now, signs.silent_after);
    AddEvent(now, "not_released",
             absl::StrCat("trainers have not ended ", ShortDuration(now - *ended_at_),
                          " after they were told to, and are told again: ", missing.text));
    Changed();
  }
  not_released_noted_ = true;
  effects->emplace_back(StopRanks{});
}

void JobMachine::SetState(JobState state, absl::Time now) {
  if (state_ == state) return;
  const bool forms = state == JobState::kForming || state == JobState::kRecovering;
  if (IsForming() && !forms && !IsEnded(state)) reason_.clear();  // of what is over
  state_ = state;
  // A save that has begun may end, once, before a job that shall stop is killed.
  if (state == JobState::kCheckpointing && cancel_deadline_.has_value() && !cancel_extended_) {
    cancel_extended_ = true;
    cancel_deadline_ = std::max(*cancel_deadline_, now + options_.checkpoint_and_stop_limit);
  }
  const bool routine = state == JobState::kEvaluating || state == JobState::kCheckpointing ||
                       (state == JobState::kRunning && iteration_ > 0);
  if (!routine) {
    std::string text = reason_;
    if (text.empty() && epoch_ > 0) text = absl::StrCat("epoch ", epoch_);
    AddEvent(now, absl::AsciiStrToLower(JobStateName(state)), text);
  }
  Changed();
}

void JobMachine::AddEvent(absl::Time now, const std::string& kind, const std::string& text,
                          int rank) {
  JobEvent event{.time = now, .epoch = epoch_, .kind = kind, .text = text, .rank = rank};
  if (rank >= 0 && rank < static_cast<int>(ranks_.size())) event.worker = ranks_[rank].worker;
  history_.AddEvent(std::move(event));
}

}  // namespace muster
