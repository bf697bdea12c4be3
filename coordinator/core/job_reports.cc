// JobMachine's part that takes what trainers report, and the loss of their workers.
#include <csignal>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/core/job_machine.h"

namespace muster {
namespace {

constexpr size_t kMaxPhaseDetail = 256, kMaxLastLine = 160;  // bytes
constexpr size_t kLastLines = 20;

const char* SignalName(int signal) {
  switch (signal) {
    case SIGABRT:
      return " (SIGABRT)";
    case SIGBUS:
      return " (SIGBUS)";
    case SIGFPE:
      return " (SIGFPE)";
    case SIGILL:
      return " (SIGILL)";
    case SIGINT:
      return " (SIGINT)";
    case SIGKILL:
      return " (SIGKILL)";
    case SIGSEGV:
      return " (SIGSEGV)";
    case SIGTERM:
      return " (SIGTERM)";
    default:
      return "";
  }
}

}  // namespace

std::string HowItExited(const ExitedReport& exited) {
  if (exited.signal.has_value()) {
    return absl::StrCat("was killed by signal ", *exited.signal, SignalName(*exited.signal));
  }
  if (exited.exit_code.has_value()) return absl::StrCat("exited with code ", *exited.exit_code);
  return absl::StrCat("could not be started: ", exited.launch_error);
}

namespace {

// By a fault of its own, as far as one can see from outside.
bool EndedByItself(const ExitedReport& exited) {
  if (exited.exit_code.has_value()) return true;
  const int signal = exited.signal.value_or(0);
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGBUS || signal == SIGFPE ||
         signal == SIGILL;
}

// It was refused by an agent that is about to end or still ends another one: it says nothing about
// the job.
bool IsOfItsAgent(const ExitedReport& exited) {
  for (const char* part :
       {"agent is ending", "still has the trainer", "still ending", "never came"}) {
    if (absl::StrContains(exited.launch_error, part)) return true;
  }
  return false;
}

// What a program says last is mostly why it ended.
std::string LastLine(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const absl::string_view text = absl::StripAsciiWhitespace(*line);
    if (text.empty()) continue;
    return absl::StrCat("; its last line: ", absl::CHexEscape(text.substr(0, kMaxLastLine)),
                        text.size() > kMaxLastLine ? "..." : "");
  }
  return "";
}

}  // namespace

// ", while saving, after iteration 300"
std::string JobMachine::Circumstances(int rank) const {
  const RankSlot& slot = ranks_[rank];
  const bool tells = slot.stage < RankStage::kDone && slot.stage != RankStage::kStart;
  return absl::StrCat(tells ? absl::StrCat(", while ", slot.phase) : "",
                      iteration_ > 0 ? absl::StrCat(", after iteration ", iteration_) : "");
}

void JobMachine::OnReport(int rank, const ReportBody& body, absl::Time now, JobEffects* effects) {
  MUSTER_CHECK(rank >= 0 && rank < static_cast<int>(ranks_.size()));
  RankSlot& slot = ranks_[rank];
  if (slot.trainer != RankSlot::Trainer::kLaunched) return;  // `exited` is a trainer's last word
  slot.last_report = now;
  if (const auto* phase = std::get_if<PhaseMessage>(&body)) {
    OnPhase(rank, *phase, now);
  } else if (const auto* id = std::get_if<PublishUniqueIdMessage>(&body)) {
    // Rank 0's first word counts; a repeated one is the same.
    if (rank != 0 || !unique_id_.empty() || ended() || aborted_) return;
    unique_id_ = id->id;
    unsaved_.epoch = true;
    effects->emplace_back(PublishUniqueId{});
  } else if (const auto* step = std::get_if<StepMessage>(&body)) {
    OnStep(rank, epoch_, *step, now, effects);
  } else if (const auto* evaluation = std::get_if<EvaluationMessage>(&body)) {
    EvaluationMessage record = *evaluation;
    record.epoch = epoch_;
    history_.AddEvaluation(record);
    if (clock_.phase() == WaitPhase::kEvaluation) NoteProgress(now);
    AddEvent(
        now, "evaluated",
        absl::StrCat(record.split, " loss ", record.lm_loss, " at iteration ", record.iteration),
        rank);
  } else if (const auto* checkpoint = std::get_if<CheckpointMessage>(&body)) {
    CheckpointMessage record = *checkpoint;
    record.epoch = epoch_;
    if (record.ok) {
      history_.AddCheckpoint(record);
      clock_.Observe(WaitPhase::kSave, absl::Milliseconds(record.elapsed_ms));
      if (clock_.phase() == WaitPhase::kSave) NoteProgress(now);
      AddEvent(now, "checkpoint",
               absl::StrCat("iteration ", record.iteration, " saved to ", record.path), rank);
    } else {
      AddEvent(
          now, "checkpoint_failed",
          absl::StrCat("iteration ", record.iteration, " to ", record.path, ": ", record.error),
          rank);
      if (IsDiskFull(record.error)) {
        NoteKind(FailureKind::kDiskFull, absl::StrCat(record.path, ": ", record.error), rank, now);
      }
    }
  } else if (const auto* probe = std::get_if<ProbeReport>(&body)) {
    hang_watch_.Take(rank, *probe);
    return;
  } else if (const auto* times = std::get_if<RankTimesMessage>(&body)) {
    OnRankTimes(rank, *times, now);
    return;
  } else if (const auto* restored = std::get_if<RestoredMessage>(&body)) {
    if (aborted_ || ended()) return;
    incident_.restored = *restored;
    AddEvent(now, "restored",
             absl::StrCat("goes on after iteration ", restored->iteration, ", from ",
                          restored->source, restored->text.empty() ? "" : ": ", restored->text),
             rank);
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
  RankChanged(rank);
  const std::string name = phase.phase.substr(0, kMaxPhaseName);
  const bool progress = slot.phase != name || slot.phase_detail != phase.detail;
  const std::optional<WaitPhase> before = WaitPhaseOf(slot.stage);
  if (slot.stage == RankStage::kDone || slot.stage == RankStage::kGone) return;
  Place(rank, name, StageOfPhase(name));
  slot.phase_detail = phase.detail.substr(0, kMaxPhaseDetail);
  if (!IsActive(state_)) return;
  if (aborted_) return;
  NoteParts(now);
  if (slot.stage == RankStage::kYielded) NoteYielded(now);
  if (IsForming() && num_early() == 0) SetState(TrainingState(), now);
  // Before all have joined in, what the ranks do that wait for those behind brings nothing forward.
  const bool all_work = clock_.phase().has_value() && *clock_.phase() >= WaitPhase::kStep;
  if (progress && (all_work || before == clock_.phase())) NoteProgress(now);
  UpdateWait(now);
  if (IsForming() || !IsTrainingPhase(ranks_[0].phase)) return;
  if (ranks_[0].phase == "evaluating") {
    SetState(JobState::kEvaluating, now);
  } else if (ranks_[0].phase == "saving") {
    SetState(JobState::kCheckpointing, now);
  } else {
    SetState(TrainingState(), now);
  }
}

void JobMachine::OnDone(int rank, const DoneMessage& done, absl::Time now, JobEffects* effects) {
  RankChanged(rank);
  num_done_ += ranks_[rank].done.has_value() ? 0 : 1;
  ranks_[rank].done = done;
  Place(rank, "done", RankStage::kDone);
  if (!IsActive(state_)) return;
  NoteProgress(now);
  UpdateWait(now);
  if (num_done_ == world_size()) FinishDone(now, effects);
}

void JobMachine::OnFailed(int rank, const FailedMessage& failed, absl::Time now,
                          JobEffects* effects) {
  RankChanged(rank);
  const RankStage stage = ranks_[rank].stage;
  const std::string circumstances = Circumstances(rank);
  Place(rank, "failed", RankStage::kGone);
  UpdateWait(now);
  ranks_[rank].failed_in_collective = failed.collective;
  AddEvent(now, "rank_failed", failed.reason, rank);
  if (!IsActive(state_)) return;
  const FailureKind kind = KindOfFailed(failed);
  NoteKind(kind, failed.reason, rank, now);
  FailureCause cause =
      CauseAt(rank, absl::StrCat(KindPrefix(kind), failed.reason, circumstances), now);
  cause.kind = FailureKindName(kind);
  cause.symptom = failed.collective;
  cause.by_trainer = !failed.collective;
  // What a model, a plugin or a file is wrong with at the first start is wrong every time.
  cause.hopeless = !failed.collective && !HasTrained() && stage < RankStage::kStep;
  OnFailure(std::move(cause), now, effects);
  if (!failed.collective) CondemnRank(rank, failed.reason, now, effects);
}

void JobMachine::OnExited(int rank, const ExitedReport& exited, absl::Time now,
                          JobEffects* effects) {
  RankSlot& slot = ranks_[rank];
  RankChanged(rank);
  const std::string circumstances = Circumstances(rank);
  slot.trainer = RankSlot::Trainer::kExited;
  --num_launched_;
  Place(rank, "exited", RankStage::kGone);
  UpdateWait(now);
  const std::string how = HowItExited(exited);
  const bool clean = slot.done.has_value() && exited.exit_code == 0;
  if (!clean) AddEvent(now, "trainer_exited", absl::StrCat("the trainer ", how), rank);
  // A job that recovers keeps the worker for another process.
  if (ended() || slot.done.has_value()) Release(&slot, epoch_, rank, effects);
  if (!IsActive(state_) || slot.done.has_value()) return;
  if (slot.condemned) {  // as it was told to; why is known
    Changed();
    return;
  }
  const FailureKind kind = KindOfExit(exited, "");
  NoteKind(kind, absl::StrCat("the trainer ", how, LastLine(exited.last_log_lines)), rank, now);
  FailureCause cause = CauseAt(rank,
                               absl::StrCat(KindPrefix(kind), "the trainer ", how,
                                            exited.exit_code == 0 ? " before it was done" : "",
                                            circumstances, LastLine(exited.last_log_lines)),
                               now);
  cause.kind = FailureKindName(kind);
  cause.exit_code = exited.exit_code;
  cause.signal = exited.signal;
  if (!exited.last_log_lines.empty()) cause.last_log_lines = exited.last_log_lines;
  // A trainer that leaves on its own after a failed collective shows the same symptom again.
  cause.symptom = slot.failed_in_collective && !exited.signal.has_value();
  cause.by_trainer = !cause.symptom && EndedByItself(exited);
  cause.hopeless = !HasTrained() && !exited.launch_error.empty() && !IsOfItsAgent(exited);
  OnFailure(std::move(cause), now, effects);
}

void JobMachine::OnWorkerLost(int rank, FailureKind kind, const std::string& reason, absl::Time now,
                              JobEffects* effects) {
  RankSlot& slot = ranks_[rank];
  if (!slot.held) return;
  const std::string text =
      absl::StrCat("worker ", slot.worker, " was lost: ", reason, Circumstances(rank));
  if (slot.trainer == RankSlot::Trainer::kLaunched) --num_launched_;
  slot.trainer = RankSlot::Trainer::kExited;
  slot.lost = true;
  Place(rank, "lost", RankStage::kGone);
  UpdateWait(now);
  RankChanged(rank);
  AddEvent(now, "worker_lost", text, rank);
  Release(&slot, epoch_, rank, effects);
  if (IsActive(state_) && !slot.done.has_value()) {
    FailureCause cause = CauseAt(rank, text, now);
    cause.kind = FailureKindName(kind);
    OnFailure(std::move(cause), now, effects);
  }
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
  // Until a trainer's own last words come with its exit.
  cause.last_log_lines = history_.LastLines(rank, epoch_, kLastLines);
  cause.iteration = iteration_;
  cause.epoch = epoch_;
  cause.time = now;
  return cause;
}

}  // namespace muster
