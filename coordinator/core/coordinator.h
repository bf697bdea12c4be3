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
#include "coordinator/core/durable.h"
#include "coordinator/core/job_machine.h"
#include "coordinator/core/job_queue.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/rendezvous.h"
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
  absl::Status On(const SetKey& event, absl::Time now, Outcome* out);
  absl::Status On(const WaitPrefix& event, absl::Time now, Outcome* out);
  absl::Status On(const CancelWait& event, absl::Time now, Outcome* out);

  JobMachine* MutableJob(const std::string& job_id);
  void OnLost(const LostAgent& lost, absl::Time now, std::vector<Action>* actions);
  // Sends an agent that (re)connected all that counts for its assignments.
  void Resync(const Agent& agent, std::vector<Action>* actions);
  void Apply(JobMachine& job, const JobEffects& effects, std::vector<Action>* actions);
  void SendLaunches(const JobMachine& job, std::vector<Action>* actions);
  void SendStops(const JobMachine& job, std::vector<Action>* actions);
  // To every connected agent that holds a live trainer of the job, once each.
  void Broadcast(const JobMachine& job, const AgentMessage& message, std::vector<Action>* actions);
  void Send(const std::string& incarnation, AgentMessage message, std::vector<Action>* actions);
  // Starts what fits, if anything has changed that admission depends on.
  void Admit(absl::Time now, std::vector<Action>* actions);
  void StartJob(JobMachine& job, absl::Time now, std::vector<Action>* actions);
  bool MakeRoom();
  void AddJob(std::unique_ptr<JobMachine> job);
  // To be called after anything that may have changed the job.
  void Touch(const JobMachine& job);
  JobSilence SilenceOf(const std::string& job_id) const;
  // Restored agents are back, or have had their time.
  void EndSettling(absl::Time now);
  int64_t SequenceOf(const std::string& job_id) const;
  void SaveSelf(DurableChanges* changes) const;
  absl::Status RestoreSelf(const std::string& value);
  absl::Status RestoreJob(const JobRecords& records, absl::Time now);
  absl::Status RestoreHeld(const JobMachine& job);
  void FlushChanged(std::vector<Action>* actions);

  const CoordinatorOptions options_;
  Membership membership_;
  Rendezvous rendezvous_;
  std::map<int64_t, std::unique_ptr<JobMachine>> jobs_;  // by sequence
  std::map<std::string, int64_t> job_sequence_;          // by id
  std::map<std::string, std::string> idempotency_;       // key -> job id
  std::set<int64_t> live_;  // jobs that have not released all their workers
  std::string job_tag_;
  int64_t next_sequence_ = 1;
  int64_t num_stale_reports_ = 0;
  StorageState storage_;
  std::set<std::string> changed_;                   // jobs touched by the event that is handled now
  absl::Time settle_until_ = absl::InfinitePast();  // while restored agents may come back
  // What TakeChanges has to look at.
  bool self_unsaved_ = true, decided_ = false;
  std::set<int64_t> unsaved_jobs_, forgotten_jobs_;
  int64_t queue_generation_ = 0;                  // raised when the queue changes
  std::pair<int64_t, int64_t> admitted_{-1, -1};  // generations at the last Admit
};

}  // namespace muster
