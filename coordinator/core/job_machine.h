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
//     sought it waits for that. A job that shall save before it stops recovers, then stops.
//   8 (any active) -> RECOVERING: a trainer ended before it was done, its worker was lost, a rank
//     can not go on, or a wait reached its cap (phase_limits.h). The epoch is aborted at once; it
//     is raised again as soon as there is a plan (recovery_plan.h), which the coordinator makes
//     after the event was handled, so that all ranks of a node are one plan. A failure while it
//     recovers starts that again.
//
// A failure inside a collective is a symptom: some other rank has the cause, and its report may
// come by another node's stream, later. So a symptom aborts the epoch at once, but the job is
// judged when a cause comes or `symptom_window` has passed. A job that ends for good says the first
// cause of the failures that count for its budget (cause_chain.h).
//
// Planned changes (job_moves.cc): spares are made warm, all ranks yield at a step's boundary, then
// the epoch is raised with other places; whoever leaves takes part as a helper.
//
// Invariants: an ended state is final; a rank's trainer goes kNone -> kLaunched -> kExited within
// an epoch; `released` only after the job has ended and it holds no worker; directives have no
// gaps; an iteration is in the ledger once, and iteration() never goes back.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/job_spec.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/failure_kind.h"
#include "coordinator/core/hang_watch.h"
#include "coordinator/core/job_facts.h"
#include "coordinator/core/job_moves.h"
#include "coordinator/core/job_types.h"
#include "coordinator/core/job_waits.h"
#include "coordinator/core/straggler.h"
#include "coordinator/core/types.h"

namespace muster {

class JsonReader;

class JobMachine : public JobFacts {
 public:
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
  void OnWorkerLost(int rank, FailureKind kind, const std::string& reason, absl::Time now,
                    JobEffects* effects);
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
  // Raises the epoch.
  void Raise(EpochPlan plan, absl::Time now, JobEffects* effects);
  // There is no plan now, and why: it waits, for recovery.wait_for_workers_s at most.
  void WaitForWorkers(const std::string& reason, absl::Time now);
  // This rank's trainer must not go on (it hangs, its result is wrong): it is stopped, and its end
  // is a failure with this cause. FAILED_PRECONDITION when the job does not train.
  absl::Status Condemn(int rank, FailureKind kind, const std::string& text, absl::Time now,
                       JobEffects* effects);

  // ---- planned changes (job_moves.cc)
  // Asks for one. Workers that ranks move to must be spares of this job. FAILED_PRECONDITION when
  // it does not train or another change is under way.
  absl::Status RequestChange(PlannedChange change, absl::Time now);
  // All ranks hold a step that is examined: the epoch that is raised now has these places and
  // tells them this.
  void SetExamination(std::vector<RankMove> moves, std::string examine_json,
                      const std::string& reason);
  // All ranks hold the step `iteration`: they are told to leave with it, by directive. The epoch is
  // not raised. RESOURCE_EXHAUSTED: too many directives wait.
  absl::Status LeaveHeldStep(int64_t iteration, int exit_code, const std::string& reason,
                             absl::Time now, JobEffects* effects);
  void NoteVerdict(const std::string& verdict, const std::string& evidence, absl::Time now);
  // All ranks have come to the end of their step for it, or will not: the epoch is to be raised.
  bool change_is_due() const;
  // Takes idle workers as spares, each with a Launch.
  void AddSpares(std::vector<RankSlot> workers, absl::Time now, JobEffects* effects);
  // Ranks that should leave their workers (drained, in quarantine) and have nowhere to go; empty:
  // none. Said once in an event.
  void NoteDrainWaits(const std::string& text, absl::Time now);
  // Tells a spare to end; it is not replaced here.
  void ReleaseSpare(const std::string& worker, const std::string& reason, absl::Time now,
                    JobEffects* effects);

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

  // What others know of its workers.
  void NoteEvent(absl::Time now, const std::string& kind, const std::string& text) {
    AddEvent(now, kind, text);
    Changed();
  }
  // Ranks that are slow now, and why.
  std::map<int, StragglerCause> stragglers() const { return stragglers_.slow(); }
  // What it waits for at this moment; nullopt: for nothing.
  std::optional<JobWait> Wait(const SignsOfLife& signs = {}) const;

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
  // Those that the last probes of this wait, or of the one that a failure has ended, found
  // computing while all others waited, and that have said nothing since.
  std::vector<int> SlowRanks() const;
  void BeginStragglers();
  void CheckStragglers(absl::Time now);
  void OnRankTimes(int rank, const RankTimesMessage& times, absl::Time now);
  // ---- job_phases.cc
  void Place(int rank, const std::string& phase, RankStage stage);
  void RecountRanks();  // from ranks_
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
  void NoteCause(FailureCause cause, absl::Time now);
  // "; on the way: <the cause of the open incident>", or empty.
  std::string OnTheWay() const;
  void Recover(const FailureCause& cause, absl::Time now, JobEffects* effects);
  void CondemnRank(int rank, const std::string& reason, absl::Time now, JobEffects* effects);
  void FailForGood(const std::string& what_followed, absl::Time now, JobEffects* effects);
  // A wait that reached its cap, for this rank most likely.
  void OnStuck(int rank, const std::string& text, absl::Time now, JobEffects* effects);
  void GiveUpOnCause(absl::Time now, const SignsOfLife& signs, JobEffects* effects);
  // The rank whose agent has been silent for longest, while that of another one is heard; -1: none.
  int SilentRank(absl::Time now, const SignsOfLife& signs) const;
  void CheckRecovery(absl::Time now, JobEffects* effects);
  // It was cancelled, and its state is to be saved before.
  bool MustSave() const;
  // A stop that a step has applied, in an epoch that failed before the job had ended, stands: the
  // next epoch gets it with a new number.
  void RepeatStop(absl::Time now);
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
  bool LacksSteps(int64_t epoch) const;
  // Empty: the step was run again with the same result as before.
  std::string CompareReplay(const StepRecord& known, const StepMessage& again) const;
  void FinishDone(absl::Time now, JobEffects* effects);
  void Finish(JobState state, int exit_code, const std::string& reason, absl::Time now,
              JobEffects* effects);
  void Abort(const std::string& reason, JobEffects* effects);
  absl::StatusOr<Directive> Give(const Directive& wanted, absl::Time now, JobEffects* effects);
  void SetState(JobState state, absl::Time now);
  void AddEvent(absl::Time now, const std::string& kind, const std::string& text, int rank = -1);
  std::string Circumstances(int rank) const;
  FailureCause CauseAt(int rank, const std::string& text, absl::Time now) const;
  void Changed() {
    ++version_;
    unsaved_.state = true;
  }

  // Not durable: a restarted coordinator looks anew.
  HangWatch hang_watch_;
  std::optional<WaitPhase> hang_phase_;           // of the wait that is watched,
  absl::Time hang_since_ = absl::InfinitePast();  // and its beginning
  bool hang_noted_ = false;                       // an event was written of it
  std::vector<int> hang_slow_;                    // see SlowRanks
  int64_t hang_iteration_ = 0;                    // the highest that a probe has found
  StragglerWatch stragglers_;
  int64_t straggler_epoch_ = 0;

  Unsaved unsaved_;
};

}  // namespace muster
