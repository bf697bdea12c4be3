// JobMachine's part that takes what trainers report, and the loss of their workers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

std::string HowItExited(const ExitedReport& exited) {
  if (exited.signal.has_value()) return absl::StrCat("was killed by signal ", *exited.signal);
  if (exited.exit_code.has_value()) return absl::StrCat("exited with code ", *exited.exit_code);
  return absl::StrCat("could not be started: ", exited.launch_error);
}

}  // namespace

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

}  // namespace muster
