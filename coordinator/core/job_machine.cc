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

// Phases in which a rank has joined its groups and works on the job.
bool IsTrainingPhase(const std::string& phase) {
  return phase == "training" || phase == "evaluating" || phase == "saving";
}

std::string HowItExited(const ExitedReport& exited) {
  if (exited.signal.has_value()) return absl::StrCat("was killed by signal ", *exited.signal);
  if (exited.exit_code.has_value()) return absl::StrCat("exited with code ", *exited.exit_code);
  return absl::StrCat("could not be started: ", exited.launch_error);
}

}  // namespace

const char* JobStateName(JobState state) {
  switch (state) {
    case JobState::kSubmitted:
      return "SUBMITTED";
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kForming:
      return "FORMING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kEvaluating:
      return "EVALUATING";
    case JobState::kCheckpointing:
      return "CHECKPOINTING";
    case JobState::kRerunning:
      return "RERUNNING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kCompleted:
      return "COMPLETED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
    case JobState::kExited:
      return "EXITED";
  }
  return "?";
}

bool IsEnded(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed ||
         state == JobState::kCancelled || state == JobState::kExited;
}

bool IsActive(JobState state) {
  return !IsEnded(state) && state != JobState::kSubmitted && state != JobState::kQueued;
}

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

void JobMachine::OnReport(int rank, const ReportBody& body, absl::Time now, JobEffects* effects) {
  MUSTER_CHECK(rank >= 0 && rank < static_cast<int>(ranks_.size()));
  RankSlot& slot = ranks_[rank];
  if (slot.trainer != RankSlot::Trainer::kLaunched) return;  // `exited` is a trainer's last word
  if (const auto* phase = std::get_if<PhaseMessage>(&body)) {
    OnPhase(rank, *phase, now);
  } else if (const auto* id = std::get_if<PublishUniqueIdMessage>(&body)) {
    // Rank 0's first word counts; a repeated one is the same.
    if (rank != 0 || !unique_id_.empty() || ended() || aborted_) return;
    unique_id_ = id->id;
    effects->emplace_back(PublishUniqueId{});
  } else if (const auto* step = std::get_if<StepMessage>(&body)) {
    OnStep(rank, *step, now);
  } else if (const auto* evaluation = std::get_if<EvaluationMessage>(&body)) {
    EvaluationMessage record = *evaluation;
    record.epoch = epoch_;
    history_.AddEvaluation(record);
    AddEvent(
        now, "evaluated",
        absl::StrCat(record.split, " loss ", record.lm_loss, " at iteration ", record.iteration),
        rank);
  } else if (const auto* checkpoint = std::get_if<CheckpointMessage>(&body)) {
    CheckpointMessage record = *checkpoint;
    record.epoch = epoch_;
    if (record.ok) {
      history_.AddCheckpoint(record);
      AddEvent(now, "checkpoint",
               absl::StrCat("iteration ", record.iteration, " saved to ", record.path), rank);
    } else {
      AddEvent(
          now, "checkpoint_failed",
          absl::StrCat("iteration ", record.iteration, " to ", record.path, ": ", record.error),
          rank);
    }
  } else if (const auto* event = std::get_if<EventMessage>(&body)) {
    AddEvent(now, event->kind, event->text, rank);
  } else if (const auto* done = std::get_if<DoneMessage>(&body)) {
    OnDone(rank, *done, now, effects);
  } else if (const auto* failed = std::get_if<FailedMessage>(&body)) {
    OnFailed(rank, *failed, now, effects);
  } else if (const auto* exited = std::get_if<ExitedReport>(&body)) {
    OnExited(rank, *exited, now, effects);
  } else if (const auto* log = std::get_if<LogLines>(&body)) {
    history_.AddLogLines(rank, epoch_, slot.worker, log->lines, now);
    return;  // lines are followed by their own index, not by the job's version
  }
  Changed();
}

void JobMachine::OnPhase(int rank, const PhaseMessage& phase, absl::Time now) {
  RankSlot& slot = ranks_[rank];
  if (slot.phase != phase.phase && forming_deadline_.has_value()) {
    forming_deadline_ = now + options_.forming_limit;  // progress in a phase resets its limit
  }
  slot.phase = phase.phase;
  slot.phase_detail = phase.detail;
  if (!IsActive(state_)) return;
  if (state_ == JobState::kForming) {
    const bool all_train = std::all_of(ranks_.begin(), ranks_.end(),
                                       [](const RankSlot& r) { return IsTrainingPhase(r.phase); });
    if (all_train) SetState(JobState::kRunning, now);
  }
  if (state_ == JobState::kForming || !IsTrainingPhase(ranks_[0].phase)) return;
  if (ranks_[0].phase == "evaluating") {
    SetState(JobState::kEvaluating, now);
  } else if (ranks_[0].phase == "saving") {
    SetState(JobState::kCheckpointing, now);
  } else {
    SetState(JobState::kRunning, now);
  }
}

void JobMachine::OnStep(int rank, const StepMessage& step, absl::Time now) {
  StepMessage record = step;
  record.epoch = epoch_;
  history_.AddStep(epoch_, record, now);
  iteration_ = step.iteration;
  consumed_samples_ = step.consumed_samples;
  flops_so_far_ = step.num_floating_point_operations_so_far;
  directives_.Applied(step.applied_directive);
  if (state_ == JobState::kForming) SetState(JobState::kRunning, now);
}

void JobMachine::OnDone(int rank, const DoneMessage& done, absl::Time now, JobEffects* effects) {
  ranks_[rank].done = done;
  ranks_[rank].phase = "done";
  if (!IsActive(state_)) return;
  if (!done_deadline_.has_value()) done_deadline_ = now + options_.done_limit;
  const bool all_done = std::all_of(ranks_.begin(), ranks_.end(),
                                    [](const RankSlot& r) { return r.done.has_value(); });
  if (all_done) FinishDone(now, effects);
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

void JobMachine::OnFailed(int rank, const FailedMessage& failed, absl::Time now,
                          JobEffects* effects) {
  ranks_[rank].phase = "failed";
  ranks_[rank].failed_in_collective = failed.collective;
  AddEvent(now, "rank_failed", failed.reason, rank);
  if (!IsActive(state_)) return;
  FailureCause cause = CauseAt(rank, failed.reason, now);
  cause.symptom = failed.collective;
  OnFailure(std::move(cause), now, effects);
}

void JobMachine::OnExited(int rank, const ExitedReport& exited, absl::Time now,
                          JobEffects* effects) {
  RankSlot& slot = ranks_[rank];
  slot.trainer = RankSlot::Trainer::kExited;
  slot.phase = "exited";
  const std::string how = HowItExited(exited);
  const bool clean = slot.done.has_value() && exited.exit_code == 0;
  if (!clean) AddEvent(now, "trainer_exited", absl::StrCat("the trainer ", how), rank);
  effects->emplace_back(ReleaseRank{rank});
  if (!IsActive(state_) || slot.done.has_value()) return;
  FailureCause cause = CauseAt(
      rank, absl::StrCat("the trainer ", how, exited.exit_code == 0 ? " before it was done" : ""),
      now);
  cause.exit_code = exited.exit_code;
  cause.signal = exited.signal;
  cause.last_log_lines = exited.last_log_lines;
  // A trainer that leaves on its own after a failed collective shows the same symptom again.
  cause.symptom = slot.failed_in_collective && !exited.signal.has_value();
  OnFailure(std::move(cause), now, effects);
}

void JobMachine::OnWorkerLost(int rank, const std::string& reason, absl::Time now,
                              JobEffects* effects) {
  RankSlot& slot = ranks_[rank];
  if (slot.trainer != RankSlot::Trainer::kLaunched) return;
  slot.trainer = RankSlot::Trainer::kExited;
  slot.phase = "lost";
  const std::string text = absl::StrCat("worker ", slot.worker, " was lost: ", reason);
  AddEvent(now, "worker_lost", text, rank);
  effects->emplace_back(ReleaseRank{rank});
  if (IsActive(state_) && !slot.done.has_value()) {
    OnFailure(CauseAt(rank, text, now), now, effects);
  }
  Changed();
}

void JobMachine::OnSpareLost(const std::string& worker, absl::Time now) {
  const auto found = std::find(spares_.begin(), spares_.end(), worker);
  if (found == spares_.end()) return;
  spares_.erase(found);
  AddEvent(now, "spare_lost", absl::StrCat("spare worker ", worker, " was lost"));
  Changed();
}

FailureCause JobMachine::CauseAt(int rank, const std::string& text, absl::Time now) const {
  const RankSlot& slot = ranks_[rank];
  FailureCause cause;
  cause.rank = rank;
  cause.worker = slot.worker;
  cause.node = slot.node;
  cause.text =
      absl::StrCat("rank ", rank, " (worker ", slot.worker, ", node ", slot.node, "): ", text);
  cause.iteration = iteration_;
  cause.epoch = epoch_;
  cause.time = now;
  return cause;
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
