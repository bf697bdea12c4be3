// The coordinator's core: every decision about a cluster and its jobs, as a function of events and
// time. Handle() takes one event and returns its answer with the actions that follow from it;
// Tick() does what only time brings about. Pure and deterministic: the same events at the same
// times give the same actions. Not thread-safe: the engine's one thread owns it.
//
// Fencing: a stream that is not its agent's current one, a report of an assignment that its worker
// does not hold, a rendezvous call of another epoch: refused with ABORTED or dropped, and nothing
// changes.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/device_health.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/job_queue.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/recovery_plan.h"
#include "coordinator/core/rendezvous.h"
#include "coordinator/core/rerun_machine.h"
#include "coordinator/core/types.h"

namespace muster {

struct CoordinatorOptions {
  MembershipOptions membership;
  JobOptions jobs;
  KvLimits rendezvous;
  size_t max_spec_bytes = 1 << 20;
  size_t max_waiting_jobs = 1'000;
  size_t max_jobs = 2'000;  // held; the oldest ended ones make room
  // Job ids are "job-<n>", or "job-<tag>-<n>": the tag tells jobs of different coordinators apart.
  std::string job_tag;
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);

  Outcome Handle(const Event& event, absl::Time now);
  std::vector<Action> Tick(absl::Time now);

  // ---- durability: see durable.h. The coordinator's own record is "coordinator".
  // What has changed since the last call: to be written before the actions of the same events are
  // carried out.
  DurableChanges TakeChanges();
  // Into a new coordinator, before its first event. INVALID_ARGUMENT names the record that cannot
  // be read; the coordinator must not be used then. `now`: agents that were alive have from now on
  // their time to reconnect.
  absl::Status Restore(const DurableState& state, absl::Time now);
  // Everything that is durable, as if nothing had ever been saved.
  DurableState SaveAll() const;

  // ---- reading
  const std::string& job_tag() const { return job_tag_; }
  const StorageState& storage() const { return storage_; }
  const Membership& membership() const { return membership_; }
  const DeviceHealth& devices() const { return devices_; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  const JobMachine* FindJob(const std::string& job_id) const;
  // By order of submission.
  const std::map<int64_t, std::unique_ptr<JobMachine>>& jobs() const { return jobs_; }
  int64_t num_stale_reports() const { return num_stale_reports_; }
  // When agents were last heard; lives no longer than the coordinator.
  SignsOfLife Signs() const;
  const CoordinatorOptions& options() const { return options_; }

 private:
  absl::Status On(const RegisterAgent& event, absl::Time now, Outcome* out);
  absl::Status On(const OpenStream& event, absl::Time now, Outcome* out);
  absl::Status On(const CloseStream& event, absl::Time now, Outcome* out);
  absl::Status On(const Heartbeat& event, absl::Time now, Outcome* out);
  absl::Status On(const LeaveAgent& event, absl::Time now, Outcome* out);
  absl::Status On(const StorageState& event, absl::Time now, Outcome* out);
  absl::Status On(const ReportBatch& event, absl::Time now, Outcome* out);
  absl::Status On(const SubmitJob& event, absl::Time now, Outcome* out);
  absl::Status On(const CancelJob& event, absl::Time now, Outcome* out);
  absl::Status On(const RequestDirective& event, absl::Time now, Outcome* out);
  absl::Status On(const DrainWorker& event, absl::Time now, Outcome* out);
  absl::Status On(const CordonWorker& event, absl::Time now, Outcome* out);
  absl::Status On(const ReplaceRank& event, absl::Time now, Outcome* out);
  absl::Status On(const SetKey& event, absl::Time now, Outcome* out);
  absl::Status On(const WaitPrefix& event, absl::Time now, Outcome* out);
  absl::Status On(const CancelWait& event, absl::Time now, Outcome* out);

  JobMachine* MutableJob(const std::string& job_id);
  void OnLost(const LostAgent& lost, absl::Time now, std::vector<Action>* actions);
  // Sends an agent that (re)connected all that counts for its assignments.
  void Resync(const Agent& agent, std::vector<Action>* actions);
  void Apply(JobMachine& job, const JobEffects& effects, std::vector<Action>* actions);
  void SendLaunches(const JobMachine& job, std::vector<Action>* actions);
  void SendLaunch(const JobMachine& job, const ExtraSlot& extra, std::vector<Action>* actions);
  void ForgetEverywhere(const JobMachine& job, std::vector<Action>* actions);
  void SendStops(const JobMachine& job, std::vector<Action>* actions);
  // To every connected agent that holds a live trainer of the job, once each.
  void Broadcast(const JobMachine& job, const AgentMessage& message, std::vector<Action>* actions);
  void Send(const std::string& incarnation, AgentMessage message, std::vector<Action>* actions);
  // Starts what fits, if anything has changed that admission depends on.
  void Admit(absl::Time now, std::vector<Action>* actions);
  void StartJob(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  RankSlot SlotOn(const std::string& worker, const JobMachine& job) const;
  // ---- coordinator_recover.cc
  // Raises the epoch of jobs that wait for a plan or whose ranks have yielded. At the end of each
  // event, before Admit.
  void Reform(absl::Time now, std::vector<Action>* actions);
  void PlanFor(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  void RaiseEpoch(JobMachine& job, EpochPlan plan, absl::Time now, std::vector<Action>* actions);
  // The spec for the trainers, where it isn't the submitted one.
  std::string SpecFor(const JobMachine& job, int64_t data_parallel_size) const;
  // ---- coordinator_moves.cc
  void ApplyChange(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  // Moves ranks off workers that are drained, grows elastic jobs, keeps spares. At each tick.
  void Rearrange(absl::Time now, std::vector<Action>* actions);
  // The change that moves these ranks to spares of the job or idle workers, which become spares.
  // FAILED_PRECONDITION when there are not enough.
  absl::Status MoveRanks(JobMachine& job, const std::vector<int>& ranks, const std::string& reason,
                         absl::Time now, std::vector<Action>* actions);
  // Spares of the job that can take a rank.
  std::vector<std::string> GoodSpares(const JobMachine& job) const;
  void MoveDrained(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  void Grow(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  void KeepSpares(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  void TakeSpares(JobMachine& job, const std::vector<std::string>& workers, absl::Time now,
                  std::vector<Action>* actions);
  std::vector<RecoveryWorker> IdleWorkers(const JobMachine& job) const;
  // ---- coordinator_rerun.cc
  RerunArbiter& ArbiterOf(const JobMachine& job);
  void OnExamined(JobMachine& job, int rank, const ExamineMessage& message, absl::Time now);
  // All ranks have yielded: with a step under examination, what becomes of it.
  void Arbitrate(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  // ---- coordinator_watch.cc
  void NoteEvent(const std::string& job_id, const std::string& kind, const std::string& text,
                 absl::Time now);
  // What has happened to agents, as events of the jobs that they hold ranks of.
  void TellNews(absl::Time now);
  // Events of its jobs. kNodeLost when none of its node's agents is left, else kAgentLost.
  FailureKind NoteLost(const LostAgent& lost, absl::Time now);
  void OnDeviceCheck(const std::string& worker, const DeviceCheck& check, absl::Time now);
  // Its device is not to be used until a person says so. Its ranks move away as from a drained one.
  void Quarantine(const std::string& worker, const std::string& evidence, absl::Time now);
  absl::Status MoveRankTo(JobMachine& job, int rank, const std::string& to,
                          const std::string& reason, absl::Time now, std::vector<Action>* actions);
  bool MakeRoom();
  void AddJob(std::unique_ptr<JobMachine> job);
  // To be called after anything that may have changed the job.
  void Touch(const JobMachine& job);
  JobSilence SilenceOf(const std::string& job_id) const;
  // After a restart each job goes on as soon as the agents of its own ranks are back, or lost, or
  // have had their time; agents of spares and of other jobs are not waited for.
  void EndSettling(absl::Time now);
  bool AwaitsRanks(const JobMachine& job) const;
  int64_t SequenceOf(const std::string& job_id) const;
  void SaveSelf(DurableChanges* changes) const;
  absl::Status RestoreSelf(const std::string& value);
  absl::Status RestoreJob(const JobRecords& records, absl::Time now);
  absl::Status RestoreHeld(const JobMachine& job);
  void FlushChanged(std::vector<Action>* actions);

  const CoordinatorOptions options_;
  Membership membership_;
  DeviceHealth devices_;
  std::map<int64_t, RerunArbiter> arbiters_;  // by sequence, of jobs that had a rejected result
  Rendezvous rendezvous_;
  std::map<int64_t, std::unique_ptr<JobMachine>> jobs_;  // by sequence
  std::map<std::string, int64_t> job_sequence_;          // by id
  std::map<std::string, std::string> idempotency_;       // key -> job id
  std::set<int64_t> reforming_;  // jobs that wait for a plan or are about to change places
  // Generation of workers and version of the job at the last plan that came to nothing.
  std::map<int64_t, std::pair<int64_t, int64_t>> planned_at_;
  std::map<int64_t, std::set<std::string>> agents_of_job_;  // incarnations that have had its ranks
  std::set<int64_t> live_;  // jobs that have not released all their workers
  std::string job_tag_;
  int64_t next_sequence_ = 1;
  int64_t num_stale_reports_ = 0;
  StorageState storage_;
  std::set<std::string> changed_;                   // jobs touched by the event that is handled now
  absl::Time settle_until_ = absl::InfinitePast();  // while restored agents may come back
  // Until then nearly all of them do: no plan makes do with less than it would have with them.
  absl::Time hold_plans_until_ = absl::InfinitePast();
  // What TakeChanges has to look at.
  bool self_unsaved_ = true, decided_ = false;
  std::set<int64_t> unsaved_jobs_, forgotten_jobs_;
  int64_t queue_generation_ = 0;                  // raised when the queue changes
  std::pair<int64_t, int64_t> admitted_{-1, -1};  // generations at the last Admit
};

}  // namespace muster
