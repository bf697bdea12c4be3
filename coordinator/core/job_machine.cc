#include "coordinator/core/job_machine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitCancelled = 130;  // as a shell says for SIGINT

}  // namespace

JobMachine::JobMachine(Identity identity, JobSpec spec, int64_t train_iters,
                       const JobOptions& options, absl::Time now)
    : identity_(std::move(identity)),
      spec_(std::move(spec)),
      train_iters_(train_iters),
      options_(options),
      submitted_at_(now),
      history_(static_cast<int>(spec_.resources.world_size), options.history) {
  AddEvent(now, "submitted",
           absl::StrCat("job \"", spec_.name, "\" with ", world_size(), " ranks"));
}

DeviceKind JobMachine::kind() const {
  return spec_.resources.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

bool JobMachine::released() const {
  return ended() && std::none_of(ranks_.begin(), ranks_.end(), [](const RankSlot& r) {
           return r.trainer == RankSlot::Trainer::kLaunched;
         });
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

void JobMachine::Start(std::vector<RankSlot> ranks, std::vector<std::string> spares, absl::Time now,
                       JobEffects* effects) {
  MUSTER_CHECK(state_ == JobState::kQueued);
  MUSTER_CHECK(static_cast<int>(ranks.size()) == world_size());
  ranks_ = std::move(ranks);
  spares_ = std::move(spares);
  for (RankSlot& slot : ranks_) slot.trainer = RankSlot::Trainer::kLaunched;
  ++epoch_;
  unique_id_.clear();
  aborted_ = false;
  directives_through_ = directives_.applied();
  reason_.clear();
  if (!started_at_.has_value()) started_at_ = now;
  forming_deadline_ = now + options_.forming_limit;
  SetState(JobState::kForming, now);
  effects->emplace_back(LaunchRanks{});
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
  const bool trained = train_iters_ > 0 && iteration_ >= train_iters_;
  if (code != 0) {
    Finish(JobState::kExited, code, reason, now, effects);
  } else if (cancel_.has_value() && !trained) {
    Finish(JobState::kCancelled, kExitCancelled, cancel_reason_, now, effects);
  } else {
    Finish(JobState::kCompleted, 0, reason, now, effects);
  }
}

void JobMachine::OnFailure(FailureCause cause, absl::Time now, JobEffects* effects) {
  const bool better = !cause_.has_value() || (cause_->symptom && !cause.symptom);
  if (better) cause_ = std::move(cause);
  Changed();
  if (cause_->symptom) {
    if (symptom_deadline_.has_value()) return;
    symptom_deadline_ = now + options_.symptom_window;
    reason_ = absl::StrCat(cause_->text, "; waiting for its cause");
    Abort(cause_->text, effects);
    return;
  }
  // What is cancelled need not succeed, except to save.
  if (cancel_.has_value() && *cancel_ != CancelMode::kCheckpointAndStop) {
    Finish(JobState::kCancelled, kExitCancelled,
           absl::StrCat(cancel_reason_, "; on the way: ", cause_->text), now, effects);
    return;
  }
  Finish(JobState::kFailed, kExitFailed, cause_->text, now, effects);
}

void JobMachine::Abort(const std::string& reason, JobEffects* effects) {
  if (aborted_) return;
  aborted_ = true;
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
  forming_deadline_.reset();
  done_deadline_.reset();
  cancel_deadline_.reset();
  const bool in_order = state == JobState::kCompleted || state == JobState::kExited ||
                        (state == JobState::kCancelled && !ranks_.empty() &&
                         std::all_of(ranks_.begin(), ranks_.end(),
                                     [](const RankSlot& r) { return r.done.has_value(); }));
  if (!ranks_.empty()) {
    if (in_order) {
      aborted_ = true;  // nothing of this epoch is accepted any more
      effects->emplace_back(EndRendezvous{reason});
    } else {
      Abort(reason, effects);
    }
    effects->emplace_back(StopRanks{});
    effects->emplace_back(ReleaseSpares{});
  }
  SetState(state, now);
}

absl::StatusOr<Directive> JobMachine::Request(Directive::Kind kind, const std::string& reason,
                                              absl::Time now, JobEffects* effects) {
  if (!IsActive(state_) || aborted_) {
    return absl::FailedPreconditionError(absl::StrCat(job_id(), " is ", JobStateName(state_),
                                                      " and does not train now",
                                                      reason_.empty() ? "" : ": ", reason_));
  }
  const bool saves =
      kind == Directive::Kind::kCheckpoint || kind == Directive::Kind::kCheckpointAndStop;
  if (saves && !spec_.checkpoint.save.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_id(), " has no folder to save to: its spec sets no checkpoint.save"));
  }
  ASSIGN_OR_RETURN(Directive directive, directives_.Append(kind, reason));
  AddEvent(now, "directive",
           absl::StrCat(directive.number, ": ", DirectiveKindName(kind), reason.empty() ? "" : ", ",
                        reason));
  effects->emplace_back(PublishDirective{directive});
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
  const bool nothing_to_stop = state_ == JobState::kSubmitted || state_ == JobState::kQueued ||
                               state_ == JobState::kForming || aborted_;
  if (mode == CancelMode::kKill || nothing_to_stop) {
    Finish(JobState::kCancelled, kExitCancelled, cancel_reason_, now, effects);
    return;
  }
  const bool save = mode == CancelMode::kCheckpointAndStop && spec_.checkpoint.save.has_value();
  const auto directive =
      Request(save ? Directive::Kind::kCheckpointAndStop : Directive::Kind::kStop, cancel_reason_,
              now, effects);
  if (!directive.ok()) {  // the log is full: trainers do not listen
    Finish(JobState::kCancelled, kExitCancelled, cancel_reason_, now, effects);
    return;
  }
  cancel_deadline_ = now + (save ? options_.checkpoint_and_stop_limit : options_.stop_limit);
}

void JobMachine::Tick(absl::Time now, JobEffects* effects) {
  const auto passed = [&](const std::optional<absl::Time>& limit) {
    return limit.has_value() && *limit <= now;
  };
  if (!IsActive(state_)) return;
  if (passed(symptom_deadline_)) {
    cause_->symptom = false;  // nothing better came: this is the cause
    symptom_deadline_.reset();
    OnFailure(*cause_, now, effects);
  } else if (passed(cancel_deadline_)) {
    Finish(JobState::kCancelled, kExitCancelled,
           absl::StrCat(cancel_reason_, "; its trainers did not stop in time and were killed"), now,
           effects);
    Changed();
  } else if (passed(forming_deadline_)) {
    int late = 0;  // the rank that is named as the first; the text names all
    while (late + 1 < world_size() && IsTrainingPhase(ranks_[late].phase)) ++late;
    OnFailure(CauseAt(late,
                      absl::StrCat("no progress while forming for ",
                                   absl::FormatDuration(options_.forming_limit), "; ", Progress()),
                      now),
              now, effects);
  } else if (passed(done_deadline_)) {
    std::vector<int> missing;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (!ranks_[rank].done.has_value()) missing.push_back(rank);
    }
    OnFailure(
        CauseAt(missing.front(),
                absl::StrCat("ranks ", CompressRanks(missing), " are not done ",
                             absl::FormatDuration(options_.done_limit), " after the first one was"),
                now),
        now, effects);
  }
}

void JobMachine::SetState(JobState state, absl::Time now) {
  if (state_ == state) return;
  if (state_ == JobState::kForming) forming_deadline_.reset();
  state_ = state;
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

std::string JobMachine::Progress() const {
  if (!IsActive(state_)) return "";
  std::map<std::string, std::vector<int>> by_phase;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    by_phase[ranks_[rank].phase].push_back(rank);
  }
  std::vector<std::string> parts;
  for (const auto& [phase, members] : by_phase) {
    std::set<std::string> nodes;
    if (!IsTrainingPhase(phase)) {
      for (const int rank : members) nodes.insert(ranks_[rank].node);
    }
    std::vector<std::string> named(nodes.begin(), nodes.end());
    const bool more = named.size() > 4;
    if (more) named.resize(4);
    parts.push_back(absl::StrCat("ranks ", CompressRanks(members), named.empty() ? "" : " (node ",
                                 absl::StrJoin(named, ", "), more ? ", ..." : "",
                                 named.empty() ? "" : ")", ": ", phase));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace muster
