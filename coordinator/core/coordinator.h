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

  // ---- durability: see durable.h
  // What has changed since the last call: to be written before the actions of the same events are
  // carried out.
  DurableChanges TakeChanges();
  // Into a new coordinator, before its first event. INVALID_ARGUMENT names the record that cannot
  // be read. `now`: agents that were alive have from now on their time to reconnect.
  absl::Status Restore(const DurableState& state, absl::Time now);

  // ---- reading
  const StorageState& storage() const { return storage_; }
  const Membership& membership() const { return membership_; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  const JobMachine* FindJob(const std::string& job_id) const;
  // By order of submission.
  const std::map<int64_t, std::unique_ptr<JobMachine>>& jobs() const { return jobs_; }
  int64_t num_stale_reports() const { return num_stale_reports_; }
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
  void FlushChanged(std::vector<Action>* actions);

  const CoordinatorOptions options_;
  Membership membership_;
  Rendezvous rendezvous_;
  std::map<int64_t, std::unique_ptr<JobMachine>> jobs_;  // by sequence
  std::map<std::string, int64_t> job_sequence_;          // by id
  std::map<std::string, std::string> idempotency_;       // key -> job id
  int64_t next_sequence_ = 1;
  int64_t num_stale_reports_ = 0;
  StorageState storage_;
  std::set<std::string> changed_;                 // jobs touched by the event that is handled now
  int64_t queue_generation_ = 0;                  // raised when the queue changes
  std::pair<int64_t, int64_t> admitted_{-1, -1};  // generations at the last Admit
};

}  // namespace muster
