// One job's life. Pure: what has to be done comes out as effects.
//
//   SUBMITTED -1-> QUEUED -2-> FORMING -3-> RUNNING <-4-> EVALUATING, CHECKPOINTING
//   1 the spec is good and the queue has room.
//   2 all its workers are idle: ranks are placed, the epoch is raised, each node gets one Launch.
//   3 every rank says that it trains, or a step is known to be committed.
//   4 rank 0 says "evaluating" or "saving", and "training" again.
//   5 (any active) -> COMPLETED or EXITED(code): every rank has said that it is done.
//   6 (any active) -> FAILED: a trainer ended before it was done, its worker was lost, a rank can
//     not go on, or a wait reached its cap (phase_limits.h). All others are aborted, then stopped.
//   7 (any but the ended ones) -> CANCELLED: at once while nothing trains or with kKill; else by a
//     stop directive, or by force when that is not obeyed in time. While the cause of a failure is
//     sought it waits for that.
//
//   RERUNNING and RECOVERING belong to the rerun arbiter and to recovery: a failure goes through
//   OnFailure(), which is where recovery decides to raise the epoch again instead of 6.
//
// A failure inside a collective is a symptom: some other rank has the cause, and its report may
// come by another node's stream, later. So a symptom aborts the epoch at once, but the job is
// judged when a cause comes or `symptom_window` has passed. The first cause is kept for good.
//
// Invariants: an ended state is final; a rank's trainer goes kNone -> kLaunched -> kExited within
// an epoch; `released` only after the job has ended and no trainer is kLaunched; directives have no
// gaps.
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
#include "common/spec/job_spec.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/job_waits.h"
#include "coordinator/core/metrics.h"
#include "coordinator/core/phase_limits.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/types.h"

namespace muster {

// Who holds a rank in the current epoch.
struct RankSlot {
  enum class Trainer { kNone, kLaunched, kExited };
  std::string worker, incarnation, node, host_address, device;
  int num_threads = 1;
  Trainer trainer = Trainer::kNone;
  std::string phase = "launched", phase_detail;
  RankStage stage = RankStage::kStart;  // follows from the members around it
  absl::Time last_report = absl::InfinitePast();
  std::optional<DoneMessage> done;
  bool failed_in_collective = false;
  bool unsaved = false;  // it is in the list of ranks whose record has changed
};

struct FailureCause {
  std::optional<int> rank, exit_code, signal;
  std::string worker, node, text;
  int64_t iteration = 0, epoch = 0;
  std::vector<std::string> last_log_lines;
  absl::Time time;
  bool symptom = false;
};

// ---- effects, to be carried out in order
struct LaunchRanks {};
struct PublishUniqueId {};
struct PublishDirective {
  Directive directive;
};
struct AbortEpoch {
  std::string reason;
};
struct StopRanks {};  // every rank whose trainer is kLaunched
struct EndRendezvous {
  std::string reason;
};
struct ReleaseRank {  // its worker is idle again
  int rank = 0;
};
struct ReleaseSpares {};
using JobEffect = std::variant<LaunchRanks, PublishUniqueId, PublishDirective, AbortEpoch,
                               StopRanks, EndRendezvous, ReleaseRank, ReleaseSpares>;
using JobEffects = std::vector<JobEffect>;

struct JobOptions {
  absl::Duration symptom_window = absl::Milliseconds(2500);  // or heartbeat_timeout + 1 s
  PhaseLimitOptions phases;
  absl::Duration stop_limit = absl::Minutes(1);  // a stop directive not obeyed: kill
  absl::Duration checkpoint_and_stop_limit = absl::Minutes(15);
  absl::Duration stop_grace = absl::Seconds(3);  // the agent's patience with its trainer
  // Trainers that have not ended this long after that are told again.
  absl::Duration release_limit = absl::Seconds(30);
  // Ticks further apart: this process stood still, and the time counts for nobody.
  absl::Duration standstill = absl::Milliseconds(500);  // as for signs of life
  HistoryLimits history;
};

// All that is saved of one job: values of records, with their keys where there are many.
struct JobRecords {
  int64_t sequence = 0;
  const std::string *identity = nullptr, *state = nullptr, *epoch = nullptr, *cause = nullptr;
  std::map<int64_t, const std::string*> ranks, directives;
  std::vector<const LedgerRow*> ledger;  // by kind and index
};

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
  // 2. One slot a rank, in rank order.
  void Start(std::vector<RankSlot> ranks, std::vector<std::string> spares, absl::Time now,
             JobEffects* effects);

  // A report of `rank` in the current epoch (the caller has checked both).
  void OnReport(int rank, const ReportBody& body, absl::Time now, JobEffects* effects);
  // The agent of this rank's worker is lost, and with it the trainer, as far as anybody can know.
  void OnWorkerLost(int rank, const std::string& reason, absl::Time now, JobEffects* effects);
  // A spare of it is lost.
  void OnSpareLost(const std::string& worker, absl::Time now);
  // FAILED_PRECONDITION when it does not train or, for a checkpoint, saves nowhere.
  absl::StatusOr<Directive> Request(const Directive& wanted, absl::Time now, JobEffects* effects);
  // Of no effect on a job that has ended. A weaker mode than the one before is ignored.
  void Cancel(CancelMode mode, const std::string& reason, absl::Time now, JobEffects* effects);
  void Tick(absl::Time now, JobEffects* effects, const SignsOfLife& signs = {});
  // News by an agent's heartbeat; of another job or epoch: ignored.
  void OnProgress(const std::string& incarnation, const TrainerProgress& progress, absl::Time now);

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
  int world_size() const { return static_cast<int>(spec_.resources.world_size); }
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
  bool released() const;  // ended, and no trainer of it is left
  bool aborted() const { return aborted_; }
  int num_launched() const { return num_launched_; }  // trainers that have not ended
  bool cancelling() const { return cancel_.has_value() && !ended(); }
  const std::optional<FailureCause>& cause() const { return cause_; }
  const std::vector<RankSlot>& ranks() const { return ranks_; }
  const std::vector<std::string>& spares() const { return spares_; }
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
  absl::Status RestoreRanks(const JobRecords& records);
  absl::Status RestoreDirectives(const JobRecords& records);
  absl::Status RestoreLedger(const JobRecords& records);
  absl::Status RestoreSamples(const std::vector<double>& numbers, const std::string& where);
  absl::Status CheckRestored(const std::string& where) const;
  void RankChanged(int rank);
  void AllRanksChanged();

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
  void OnStep(int rank, const StepMessage& step, absl::Time now);
  void OnDone(int rank, const DoneMessage& done, absl::Time now, JobEffects* effects);
  void OnFailed(int rank, const FailedMessage& failed, absl::Time now, JobEffects* effects);
  void OnExited(int rank, const ExitedReport& exited, absl::Time now, JobEffects* effects);
  void OnFailure(FailureCause cause, absl::Time now, JobEffects* effects);
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
  std::vector<RankSlot> ranks_;      // empty before the first epoch
  std::vector<std::string> spares_;  // workers
  std::string unique_id_;            // of this epoch; empty: not known yet
  bool aborted_ = false;             // this epoch is over
  int64_t directives_through_ = 0;   // applied before this epoch; <= directives_.applied()
  DirectiveLog directives_;
  JobHistory history_;

  int64_t iteration_ = 0, consumed_samples_ = 0;
  double flops_so_far_ = 0;
  int restarts_ = 0;
  int exit_code_ = 0;
  std::optional<FailureCause> cause_;
  std::optional<absl::Time> started_at_, ended_at_;

  std::optional<CancelMode> cancel_;
  std::string cancel_reason_;
  // Limits that run now, beside that of the phase.
  std::optional<absl::Time> symptom_deadline_, cancel_deadline_, release_deadline_;
  bool limits_stand_still_ = false;  // see StartLimits

  // How far the ranks have come; follows from ranks_ but for the clock's samples.
  PhaseClock clock_;
  std::map<std::string, RankSet> by_phase_;
  std::array<int, kNumRankStages> num_in_stage_{};
  int num_launched_ = 0, num_done_ = 0;
  bool stepped_ = false;  // a step of this epoch is known to be committed
  int64_t committed_ = 0;
  std::map<std::string, int64_t> agent_iteration_;  // by incarnation, from heartbeats
  absl::Time seen_at_ = absl::InfinitePast();       // the newest event or tick
  absl::Time ticked_at_ = absl::InfinitePast();     // the last tick
  bool not_released_noted_ = false, cancel_extended_ = false;

  Unsaved unsaved_;
};

}  // namespace muster
