// One job's life. Pure: what has to be done comes out as effects.
//
//   SUBMITTED -1-> QUEUED -2-> FORMING -3-> RUNNING <-4-> EVALUATING, CHECKPOINTING
//                                              ^ 3          | 8
//                                              +-- RECOVERING <--+
//   1 the spec is good and the queue has room.
//   2 all its workers are idle: ranks are placed, the epoch is raised, each node gets one Launch.
//   3 every rank says that it trains, or a step is known to be committed.
//   4 rank 0 says "evaluating" or "saving", and "training" again.
//   5 (any active) -> COMPLETED or EXITED(code): every rank has said that it is done.
//   6 (any active) -> FAILED: what 8 says has happened, and the restart budget is used up, it would
//     happen again each time, or no worker came in time.
//   7 (any but the ended ones) -> CANCELLED: at once while nothing trains or with kKill; else by a
//     stop directive, or by force when that is not obeyed in time. While the cause of a failure is
//     sought it waits for that.
//   8 (any active) -> RECOVERING: a trainer ended before it was done, its worker was lost, a rank
//     can not go on, or a wait reached its cap (phase_limits.h). The epoch is aborted at once; it
//     is raised again as soon as there is a plan (recovery_plan.h), which the coordinator makes
//     after the event was handled, so that all ranks of a node are one plan. A failure while it
//     recovers starts that again.
//
// A failure inside a collective is a symptom: some other rank has the cause, and its report may
// come by another node's stream, later. So a symptom aborts the epoch at once, but the job is
// judged when a cause comes or `symptom_window` has passed. The first cause of an incident is kept
// for good.
//
// Planned changes (job_moves.cc): spares are made warm, all ranks yield at a step's boundary, then
// the epoch is raised with other places; whoever leaves takes part as a helper.
//
// Invariants: an ended state is final; a rank's trainer goes kNone -> kLaunched -> kExited within
// an epoch; `released` only after the job has ended and it holds no worker; directives have no
// gaps; an iteration is in the ledger once, and iteration() never goes back.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/recovery/restart_budget.h"
#include "common/spec/job_spec.h"
#include "common/topology/rank_topology.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/failure_kind.h"
#include "coordinator/core/hang_watch.h"
#include "coordinator/core/job_moves.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/job_types.h"
#include "coordinator/core/job_waits.h"
#include "coordinator/core/metrics.h"
#include "coordinator/core/phase_limits.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/straggler.h"
#include "coordinator/core/types.h"

namespace muster {

RestartBudgetOptions BudgetOptionsOf(const JobSpec& spec);
// The coordinator's limits, with those that the job's spec sets.
PhaseLimitOptions PhasesOf(PhaseLimitOptions phases, const JobSpec& spec);

class JsonReader;

class JobMachine {
 public:
  struct Identity {
    std::string job_id, spec_json, idempotency_key;
    int64_t sequence = 0;  // of submission
  };
  JobMachine(Identity identity, JobSpec spec, int64_t train_iters, const JobOptions& options,
             absl::Time now);

  void Enqueue(absl::Time now);  // 1
  // The queue's answer while it waits.
  void SetQueueReason(const std::string& reason);
  // 2. One slot a rank, in rank order, and the spares.
  void Start(EpochPlan plan, absl::Time now, JobEffects* effects);

  // A report of `rank` in the current epoch (the caller has checked both).
  void OnReport(int rank, const ReportBody& body, absl::Time now, JobEffects* effects);
  // The agent of this rank's worker is lost, and with it the trainer, as far as anybody can know.
  void OnWorkerLost(int rank, const std::string& reason, absl::Time now, JobEffects* effects);
  // The same for a worker that it holds beside those of its ranks, and their reports.
  void OnExtraLost(const std::string& worker, const std::string& reason, absl::Time now,
                   JobEffects* effects);
  void OnExtraReport(const std::string& worker, const ReportBody& body, absl::Time now,
                     JobEffects* effects);
  // What a trainer of an older epoch had done before it heard of this one.
  void OnLateReport(int rank, int64_t epoch, const std::string& worker, const ReportBody& body,
                    absl::Time now, JobEffects* effects);
  // FAILED_PRECONDITION when it does not train or, for a checkpoint, saves nowhere.
  absl::StatusOr<Directive> Request(const Directive& wanted, absl::Time now, JobEffects* effects);
  // Of no effect on a job that has ended. A weaker mode than the one before is ignored.
  void Cancel(CancelMode mode, const std::string& reason, absl::Time now, JobEffects* effects);
  void Tick(absl::Time now, JobEffects* effects, const SignsOfLife& signs = {});
  // News by an agent's heartbeat; of another job or epoch: ignored.
  void OnProgress(const std::string& incarnation, const TrainerProgress& progress, absl::Time now);

  // ---- recovery (job_recovery.cc)
  // It waits for a plan: the epoch is over, and nothing but workers stands in the way.
  bool wants_plan() const;
  // Some condemned trainers have not ended, and there is still time to wait for that.
  bool awaits_exits() const;
  // Raises the epoch.
  void Raise(EpochPlan plan, absl::Time now, JobEffects* effects);
  // There is no plan now, and why: it waits, for recovery.wait_for_workers_s at most.
  void WaitForWorkers(const std::string& reason, absl::Time now);
  // This rank's trainer must not go on (it hangs, its result is wrong): it is stopped, and its end
  // is a failure with this cause. FAILED_PRECONDITION when the job does not train.
  absl::Status Condemn(int rank, const std::string& text, absl::Time now, JobEffects* effects);
  const Incident& incident() const { return incident_; }
  const RecoveryTotals& totals() const { return totals_; }
  // Steps that are left out, since they ended their trainers again and again.
  const std::vector<int64_t>& skipped_steps() const { return skipped_steps_; }

  // ---- planned changes (job_moves.cc)
  // Asks for one. Workers that ranks move to must be spares of this job. FAILED_PRECONDITION when
  // it does not train or another change is under way.
  absl::Status RequestChange(PlannedChange change, absl::Time now);
  const std::optional<PlannedChange>& change() const { return change_; }
  // All ranks hold a step that is examined: the epoch that is raised now has these places and
  // tells them this.
  void SetExamination(std::vector<RankMove> moves, std::string examine_json,
                      const std::string& reason);
  // RERUNNING while ranks run an examined step in other places.
  JobState TrainingState() const;
  void NoteVerdict(const std::string& verdict, const std::string& evidence, absl::Time now);
  // All ranks have come to the end of their step for it, or will not: the epoch is to be raised.
  bool change_is_due() const;
  // Takes idle workers as spares, each with a Launch.
  void AddSpares(std::vector<RankSlot> workers, absl::Time now, JobEffects* effects);
  absl::Time grew_at() const { return grew_at_; }

  // ---- durability (job_durable.cc, job_restore.cc)
  // Whether something has changed since the last TakeChanges.
  bool unsaved() const;
  // Adds it. Costs what has changed, not what the job is.
  void TakeChanges(DurableChanges* changes);
  // Adds everything, as if nothing had ever been saved.
  void SaveAll(DurableChanges* changes) const;
  // A job as its records say. INVALID_ARGUMENT names the record and its fault.
  static absl::StatusOr<std::unique_ptr<JobMachine>> Restore(const JobRecords& records,
                                                             const JobOptions& options,
                                                             absl::Time now);
  // A restored job's limits stand still until its agents have had their time to come back; then
  // they start anew.
  void StartLimits(absl::Time now);
  bool limits_stand_still() const { return limits_stand_still_; }

  const std::string& job_id() const { return identity_.job_id; }
  const Identity& identity() const { return identity_; }
  const JobSpec& spec() const { return spec_; }
  // Of the current epoch; of the spec before the first. Elastic jobs may be smaller than their
  // spec.
  int world_size() const;
  int64_t data_parallel_size() const { return data_parallel_size_; }
  TopologySpec topology() const;  // of the current epoch
  // The spec as the trainers of this epoch get it.
  const std::string& launch_spec_json() const {
    return spec_override_.empty() ? identity_.spec_json : spec_override_;
  }
  const std::string& examine_json() const { return examine_json_; }
  int num_helpers() const;
  DeviceKind kind() const;
  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  int64_t version() const { return version_; }
  int64_t epoch() const { return epoch_; }
  int64_t iteration() const { return iteration_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  double flops_so_far() const { return flops_so_far_; }
  int64_t train_iters() const { return train_iters_; }
  int restarts() const { return restarts_; }
  int exit_code() const { return exit_code_; }
  bool ended() const { return IsEnded(state_); }
  bool released() const;  // ended, and no worker is held by it
  bool aborted() const { return aborted_; }
  int num_launched() const { return num_launched_; }  // trainers that have not ended
  bool cancelling() const { return cancel_.has_value() && !ended(); }
  const std::optional<FailureCause>& cause() const { return cause_; }
  const std::vector<RankSlot>& ranks() const { return ranks_; }
  const std::vector<ExtraSlot>& extras() const { return extras_; }
  int num_spares() const;
  int num_held() const { return num_held_; }  // workers
  // Every worker that it holds, with the assignment by which it does.
  struct Held {
    AssignmentRef assignment;
    const RankSlot* slot;
  };
  std::vector<Held> HeldWorkers() const;
  // nullptr: not held by this job beside its ranks.
  const ExtraSlot* FindExtra(const std::string& worker) const;
  const DirectiveLog& directives() const { return directives_; }
  int64_t directives_through() const { return directives_through_; }
  const std::string& unique_id() const { return unique_id_; }
  const JobHistory& history() const { return history_; }
  absl::Duration stop_grace() const { return options_.stop_grace; }
  absl::Time submitted_at() const { return submitted_at_; }
  std::optional<absl::Time> started_at() const { return started_at_; }
  std::optional<absl::Time> ended_at() const { return ended_at_; }
  // While active: "ranks 0-2: training; ranks 3 (node b): loading".
  std::string Progress() const;
  absl::Time seen_at() const { return seen_at_; }  // the newest event or tick
  // What others know of its workers.
  void NoteEvent(absl::Time now, const std::string& kind, const std::string& text) {
    AddEvent(now, kind, text);
    Changed();
  }
  // Ranks that are slow now, and why.
  std::map<int, StragglerCause> stragglers() const { return stragglers_.slow(); }
  // What it waits for at this moment; nullopt: for nothing.
  std::optional<JobWait> Wait(const SignsOfLife& signs = {}) const;
  std::optional<WaitPhase> wait_phase() const { return clock_.phase(); }
  // Some rank has said that it is done: the others may be, too, and make no more steps.
  bool some_are_done() const { return NumIn(RankStage::kDone) > 0; }
  const PhaseLimits& phase_limits() const { return clock_.limits(); }
  // The newest step of this epoch that is known to be committed, by a report or a heartbeat.
  int64_t committed() const { return committed_; }

 private:
  // What has changed since the last TakeChanges.
  struct Unsaved {
    bool identity = false, state = false, epoch = false, cause = false;
    std::vector<int> ranks;  // each once: RankSlot::unsaved
    int64_t directives_saved = 0, ranks_saved = 0;
    int64_t next_step = 1, next_evaluation = 1, next_checkpoint = 1, next_event = 1;  // to be saved
  };
  struct Restored {};  // the constructor for Restore: no event is added
  JobMachine(Restored, Identity identity, JobSpec spec, int64_t train_iters,
             const JobOptions& options, absl::Time submitted_at);
  void Save(const Unsaved& what, DurableChanges* changes) const;
  template <class V, class M>
  static void VisitState(V& v, M& m);
  template <class V, class M>
  static void VisitEpoch(V& v, M& m);
  absl::Status RestoreState(const JobRecords& records);
  absl::Status RestoreRecovery(const std::string& where, const std::string& value);
  void RestoreOldSpares(JsonReader& epoch);
  absl::Status RestoreRanks(const JobRecords& records);
  absl::Status RestoreDirectives(const JobRecords& records);
  absl::Status RestoreLedger(const JobRecords& records);
  absl::Status RestoreSamples(const std::vector<double>& numbers, const std::string& where);
  absl::Status CheckRestored(const std::string& where) const;
  void RankChanged(int rank);
  void AllRanksChanged();

  // ---- job_hang.cc
  absl::Duration HangLimit(WaitPhase phase) const;
  // An event of its own for kinds that a person can do something about.
  void NoteKind(FailureKind kind, const std::string& text, int rank, absl::Time now);
  void CheckHang(absl::Time now, JobEffects* effects);
  void OnHangVerdict(WaitPhase phase, absl::Duration elapsed, absl::Time now, JobEffects* effects);
  void BeginStragglers();
  void CheckStragglers(absl::Time now);
  void OnRankTimes(int rank, const RankTimesMessage& times, absl::Time now);
  // ---- job_phases.cc
  void Place(int rank, const std::string& phase, RankStage stage);
  void RecountRanks();  // from ranks_
  int NumIn(RankStage stage) const { return num_in_stage_[static_cast<int>(stage)]; }
  int num_early() const;
  std::optional<WaitPhase> CurrentWait() const;
  // To be called after everything that CurrentWait() depends on.
  void UpdateWait(absl::Time now);
  void NoteProgress(absl::Time now, std::optional<absl::Duration> measured = std::nullopt);
  void NoteResumed(absl::Time now);
  void OnCommitted(int64_t iteration, std::optional<absl::Duration> measured, absl::Time now);
  void CheckWait(absl::Time now, const SignsOfLife& signs, JobEffects* effects);
  std::vector<MissingRank> Missing(const SignsOfLife& signs) const;

  void SkipStandstill(absl::Time now);
  void TellToStopAgain(absl::Time now, const SignsOfLife& signs, JobEffects* effects);
  void OnPhase(int rank, const PhaseMessage& phase, absl::Time now);
  void OnDone(int rank, const DoneMessage& done, absl::Time now, JobEffects* effects);
  void OnFailed(int rank, const FailedMessage& failed, absl::Time now, JobEffects* effects);
  void OnExited(int rank, const ExitedReport& exited, absl::Time now, JobEffects* effects);
  // ---- job_slots.cc
  void OnExtraGone(const ExtraSlot& gone, const std::string& text, bool symptom, absl::Time now,
                   JobEffects* effects);
  void StopExtra(const ExtraSlot& extra, const std::string& reason, JobEffects* effects);
  // Helpers that have not left although the ranks train.
  void StopLateHelpers(absl::Time now, JobEffects* effects);
  void DropExtra(const std::string& worker, JobEffects* effects);
  void Release(RankSlot* slot, int64_t epoch, int rank, JobEffects* effects);
  // Workers that are held without a trainer.
  void ReleaseVacant(JobEffects* effects);

  // ---- job_recovery.cc
  void OnFailure(FailureCause cause, absl::Time now, JobEffects* effects);
  void Judge(const FailureCause& cause, bool waits_for_plan, absl::Time now, JobEffects* effects);
  void NoteCause(const FailureCause& cause, absl::Time now);
  void Recover(const FailureCause& cause, absl::Time now, JobEffects* effects);
  void CondemnRank(int rank, const std::string& reason, absl::Time now, JobEffects* effects);
  void FailForGood(const std::string& what_followed, absl::Time now, JobEffects* effects);
  // A wait that reached its cap, for this rank most likely.
  void OnStuck(int rank, const std::string& text, absl::Time now, JobEffects* effects);
  void GiveUpOnCause(absl::Time now, JobEffects* effects);
  void CheckRecovery(absl::Time now, JobEffects* effects);
  bool HasTrained() const;
  bool IsForming() const { return state_ == JobState::kForming || state_ == JobState::kRecovering; }
  void NoteParts(absl::Time now);
  void EndIncident(absl::Time now);
  void TakePlaces(EpochPlan plan);  // job_machine.cc
  // ---- job_moves.cc
  void NoteYielded(absl::Time now);
  void CheckChange(absl::Time now, JobEffects* effects);
  void DropChange(const std::string& why, absl::Time now);
  // ---- job_replay.cc
  void OnStep(int rank, int64_t epoch, const StepMessage& step, absl::Time now,
              JobEffects* effects);
  // Empty: the step was run again with the same result as before.
  std::string CompareReplay(const StepRecord& known, const StepMessage& again) const;
  void FinishDone(absl::Time now, JobEffects* effects);
  void Finish(JobState state, int exit_code, const std::string& reason, absl::Time now,
              JobEffects* effects);
  void Abort(const std::string& reason, JobEffects* effects);
  void SetState(JobState state, absl::Time now);
  void AddEvent(absl::Time now, const std::string& kind, const std::string& text, int rank = -1);
  std::string Circumstances(int rank) const;
  FailureCause CauseAt(int rank, const std::string& text, absl::Time now) const;
  void Changed() {
    ++version_;
    unsaved_.state = true;
  }

  const Identity identity_;
  const JobSpec spec_;
  const int64_t train_iters_;
  const JobOptions options_;
  const absl::Time submitted_at_;

  JobState state_ = JobState::kSubmitted;
  std::string reason_;
  int64_t version_ = 1;
  int64_t epoch_ = 0;
  std::vector<RankSlot> ranks_;  // empty before the first epoch
  std::vector<ExtraSlot> extras_;
  std::string unique_id_;           // of this epoch; empty: not known yet
  bool aborted_ = false;            // this epoch is over
  int64_t directives_through_ = 0;  // applied before this epoch; <= directives_.applied()
  DirectiveLog directives_;
  JobHistory history_;

  int64_t iteration_ = 0, consumed_samples_ = 0;
  double flops_so_far_ = 0;
  int restarts_ = 0;
  int exit_code_ = 0;
  std::optional<FailureCause> cause_;  // the first one of the last incident
  std::optional<absl::Time> started_at_, ended_at_;

  std::optional<CancelMode> cancel_;
  std::string cancel_reason_;
  // Limits that run now, beside that of the phase.
  std::optional<absl::Time> symptom_deadline_, cancel_deadline_, release_deadline_;
  bool limits_stand_still_ = false;  // see StartLimits

  // Recovery.
  RestartBudget budget_;
  Incident incident_;
  RecoveryTotals totals_;
  bool seeking_cause_ = false;      // this epoch was aborted by a symptom
  int64_t data_parallel_size_ = 0;  // of this epoch; 0: before the first
  int64_t layout_epoch_ = 1;        // the first epoch of the current number of replicas
  std::string spec_override_, examine_json_;
  std::vector<int64_t> skipped_steps_;
  std::optional<absl::Time> workers_deadline_, exit_deadline_;
  std::string waits_for_;  // workers, and which
  std::optional<PlannedChange> change_;
  absl::Time grew_at_ = absl::InfinitePast();

  // How far the ranks have come; follows from ranks_ but for the clock's samples.
  PhaseClock clock_;
  std::map<std::string, RankSet> by_phase_;
  std::array<int, kNumRankStages> num_in_stage_{};
  int num_launched_ = 0, num_done_ = 0;  // extras count in the first
  int num_held_ = 0;
  bool stepped_ = false;  // a step of this epoch is known to be committed
  int64_t committed_ = 0;
  std::map<std::string, int64_t> agent_iteration_;  // by incarnation, from heartbeats
  absl::Time seen_at_ = absl::InfinitePast();       // the newest event or tick
  absl::Time ticked_at_ = absl::InfinitePast();     // the last tick
  bool not_released_noted_ = false, cancel_extended_ = false;

  // Not durable: a restarted coordinator looks anew.
  HangWatch hang_watch_;
  std::optional<WaitPhase> hang_phase_;           // of the wait that is watched,
  absl::Time hang_since_ = absl::InfinitePast();  // and its beginning
  bool hang_noted_ = false;                       // an event was written of it
  int64_t hang_iteration_ = 0;                    // the highest that a probe has found
  StragglerWatch stragglers_;
  int64_t straggler_epoch_ = 0;

  Unsaved unsaved_;
};

}  // namespace muster
