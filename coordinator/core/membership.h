// Agents and their workers. An agent is one life of a process (its incarnation); a worker is one
// device of it. Pure.
//
//              1 register          2 stream opens
//   (unknown) ------------> JOINING ------------> ALIVE <----------+
//                              |              3 quiet |            | 4 heard again
//                              | 5 limit              v            |
//                              +------> LOST <----- SUSPECT -------+
//                                            5 limit    ^ 6 restored
//   1 its names and devices are free, or belong to lost agents, or to agents of the same node whose
//     stream broke: that process was started again, and its former life is lost now.
//   2 the agent's stream says its incarnation.
//   3 the stream broke, or no heartbeat came for so long that the timeout is near: at least two
//     intervals, and by default 1.3 s of 1.5 s. People and jobs are told; nothing is done yet.
//   4 a heartbeat came, or a stream opened.
//   5 no sign of life for too long: JOINING for join_timeout, SUSPECT as silence.h decides. Final
//     for this incarnation: what it says later is refused with ABORTED, and its process comes back
//     under a new one.
//   6 the coordinator was restarted: the agent has readoption_limit to open its stream; where it
//     works only for jobs that must recover anyway, its timeout and readoption_margin.
//   An agent that says goodbye is forgotten at once.
//
// Apart from that a worker may be held back from new ranks (membership_hold.cc), which outlives
// its agent: cordoned and drained by a person, quarantined with the evidence against its device.
//
// Invariants: a stream belongs to at most one agent; a name and a (node, cuda device) to at most
// one agent that is not lost; a worker's agent exists.
//
// Costs: a heartbeat O(1) (its stream's agent is found by hash, nothing is reordered); Tick looks
// only at agents whose time to be looked at has come, about one look an agent and heartbeat
// interval; the supply of workers is counted as it changes.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/job_queue.h"
#include "coordinator/core/silence.h"
#include "coordinator/core/types.h"

namespace muster {

enum class AgentState { kJoining, kAlive, kSuspect, kLost };
const char* AgentStateName(AgentState state);

// What is heard of a job from all agents that hold its ranks.
struct JobActivity {
  absl::Time heard = absl::InfinitePast();        // the newest sign of life of any of them
  absl::Time heard_since = absl::InfinitePast();  // without a gap of a heartbeat timeout since then
  absl::Time progress = absl::InfinitePast();     // when its iteration was last seen to rise
  int64_t epoch = 0, iteration = -1;
  int num_held = 0;  // ranks; none: forgotten
};

struct Agent {
  std::string incarnation, node, version, address;
  int num_cpus = 1;
  std::vector<std::string> workers;  // names
  AgentState state = AgentState::kJoining;
  std::string reason;    // why it is not alive
  StreamId stream = 0;   // 0: none
  absl::Time last_sign;  // of life
  int64_t heartbeat_sequence = 0;
  int64_t reports_through = 0;
  int stretch = 1;                              // of heartbeats, as it was told
  std::optional<absl::Time> closed_at;          // its stream ended then, while it was fresh
  std::optional<absl::Time> awaited_until;      // restored, and not heard of since
  bool resumes_reports = false;                 // restored: see AcceptBatch
  bool told_suspect = false;                    // in AgentNews, and not yet that it is alive again
  absl::Time look_at = absl::InfiniteFuture();  // when Tick looks at it again
  int64_t order = 0;                            // of registration
  struct Held {
    JobActivity* activity;
    std::string job_id;
    int num_ranks;
  };
  std::vector<Held> jobs;  // whose ranks its workers hold
  bool Holds(const std::string& job_id) const {
    return std::any_of(jobs.begin(), jobs.end(), [&](const Held& h) { return h.job_id == job_id; });
  }
};

// Why a worker gets no new ranks.
struct WorkerHold {
  bool cordoned = false;    // it goes on with what it does
  bool draining = false;    // and what it does is moved elsewhere
  std::string quarantined;  // the evidence against its device; empty: it is not
  bool must_move() const { return draining || !quarantined.empty(); }
  bool any() const { return cordoned || draining || !quarantined.empty(); }
  // "quarantined: copy bandwidth ...", "draining", "cordoned"; empty: none.
  std::string Text() const;
  bool operator==(const WorkerHold&) const = default;
};

struct Worker {
  WorkerInfo info;
  std::string incarnation;  // of its agent
  WorkerHold hold;
  std::optional<AssignmentRef> assignment;
  std::string phase;  // last one of its trainer
  // As what it is counted in the supply. kAway: of a lost agent.
  enum class Use { kAway, kIdle, kBusy, kDraining, kCordoned, kQuarantined, kUnheard };
  Use use = Use::kAway;
};

struct LostAgent {
  std::string incarnation, reason;
  StreamId stream = 0;  // to be ended; 0: none
  std::vector<AssignmentRef> assignments;
};

// An agent of which a sign of life is missing, or that is heard again after that.
struct AgentNews {
  std::string incarnation;
  bool alive = false;
  std::string reason;
};

struct MembershipOptions {
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration heartbeat_timeout = absl::Milliseconds(1500);
  absl::Duration join_timeout = absl::Seconds(10);
  absl::Duration silence_limit = absl::Seconds(60);     // see silence.h
  absl::Duration readoption_limit = absl::Seconds(60);  // after a restart of the coordinator
  // What an agent needs to come back, beyond its heartbeat timeout: an attempt to connect that hung
  // when the coordinator came (2 s) and the longest pause between two (1 s).
  absl::Duration readoption_margin = absl::Seconds(3);
  int max_agents = 32'768;
  int max_workers = 32'768;
  int max_workers_per_agent = 1'024;
  // Beyond this many workers interval and timeout grow in proportion.
  int workers_at_full_rate = 4'096;
};

// What Tick asks about a job whose agent is silent.
struct JobSilence {
  bool trains = true;                           // its trainers should make progress
  absl::Duration patience = absl::Minutes(10);  // how long it may go without any now
  // It has failed and none of its ranks trains: whoever is missing keeps all others waiting, and to
  // give it up costs no recovery that would not be there without.
  bool recovers = false;
};
using JobSilenceOf = std::function<JobSilence(const std::string& job_id)>;

class Membership {
 public:
  explicit Membership(const MembershipOptions& options) : options_(options) {}
  Membership(const Membership&) = delete;  // pointers into its maps
  Membership& operator=(const Membership&) = delete;

  // Errors: see Register in membership.proto. `lost`: agents that this one has replaced.
  absl::Status Register(const RegisterAgent& request, absl::Time now, std::vector<LostAgent>* lost);
  // ABORTED for an incarnation that is unknown or lost. `replaced`: its former stream, or 0.
  absl::StatusOr<const Agent*> Open(const OpenStream& open, absl::Time now, StreamId* replaced);
  // A stream that is not known any more changes nothing.
  void Close(StreamId stream, absl::Time now);
  // ABORTED for a stream that is not an agent's current one.
  absl::Status Beat(const Heartbeat& heartbeat, absl::Time now);
  // A sign that a job advances, from an agent that holds ranks of it: an iteration that was not
  // reached before in this epoch, or a later epoch.
  void NoteProgress(const std::string& job_id, int64_t epoch, int64_t iteration, absl::Time now);
  // It says goodbye and is forgotten with its workers; what they held is in the answer. ABORTED for
  // a stream that is over.
  absl::StatusOr<LostAgent> Leave(const LeaveAgent& leave);
  // Notes a batch. True: new, take its reports. False: known already. FAILED_PRECONDITION: a gap.
  // The first batch after a restore may leave a gap: a machine that lost its power can have lost
  // the last second of reports, which the agent, having had its acknowledgement, does not hold.
  absl::StatusOr<bool> AcceptBatch(StreamId stream, int64_t sequence, absl::Time now);
  // Moves along arrows 3 and 5; returns the agents that are lost now. Time in which Tick itself was
  // not called (this process stood still, or the clock was set) counts for nobody.
  std::vector<LostAgent> Tick(absl::Time now, const JobSilenceOf& job_silence = nullptr);
  // What has happened to agents since the last call.
  std::vector<AgentNews> TakeNews() { return std::exchange(news_, {}); }
  // How long this process stood still before the last Tick, less when the clock was set back; 0:
  // not.
  absl::Duration stood_still() const { return stood_still_; }

  // ---- durability (membership_durable.cc): records "agent/<hex of incarnation>", ".../reports"
  // and, of a worker's hold, "drained/<worker>", "cordoned/<worker>", "quarantined/<worker>".
  bool unsaved() const {
    return !unsaved_agents_.empty() || !unsaved_reports_.empty() || !unsaved_holds_.empty();
  }
  void TakeChanges(DurableChanges* changes);
  void SaveAll(DurableChanges* changes) const;
  // INVALID_ARGUMENT names the record. The key's first part is one of the above.
  absl::Status RestoreRecord(const std::string& key, const std::string& value, absl::Time now);
  // After all records.
  void FinishRestore(absl::Time now) { last_tick_ = now; }
  // As Assign, for what a restored job says; INVALID_ARGUMENT when it cannot be.
  absl::Status RestoreAssignment(const AssignmentRef& assignment, const std::string& incarnation,
                                 const std::string& phase);
  // Restored agents that have not been heard of since.
  int num_awaited() const { return num_awaited_; }

  // ---- holding back workers (membership_hold.cc). `name`: a worker, or a node and all its
  // workers. NOT_FOUND.
  absl::StatusOr<std::vector<std::string>> WorkersNamed(const std::string& name) const;
  absl::Status Drain(const std::string& name, bool undo);
  absl::Status Cordon(const std::string& name);
  // Lifts whatever holds them back: a cordon, a drain, a quarantine.
  absl::Status Uncordon(const std::string& name);
  // `evidence` is not empty. False: it is quarantined already, or unknown.
  bool Quarantine(const std::string& worker, const std::string& evidence);
  WorkerHold HoldOf(const std::string& worker) const;

  void Assign(const AssignmentRef& assignment);
  // Idle again, if it still runs just this.
  void Release(const AssignmentRef& assignment);
  void SetPhase(const std::string& worker, const std::string& phase);

  const Agent* FindAgent(const std::string& incarnation) const;
  const Agent* FindStream(StreamId stream) const;
  const Agent* AgentOf(const std::string& worker) const;
  const Worker* FindWorker(const std::string& name) const;
  const std::map<std::string, Agent>& agents() const { return agents_; }
  const std::map<std::string, Worker>& workers() const { return workers_; }
  // Changes with everything that admission depends on: agents' states, assignments, holds.
  int64_t generation() const { return generation_; }
  // Alive, not held back, without an assignment.
  bool IsIdle(const Worker& worker) const { return worker.use == Worker::Use::kIdle; }
  const std::map<DeviceKind, WorkerSupply>& supply() const { return supply_; }
  int64_t num_lost_batches() const { return num_lost_batches_; }  // gaps after a restore

  absl::Duration heartbeat_interval() const { return options_.heartbeat_interval * stretch_; }
  absl::Duration heartbeat_timeout() const { return options_.heartbeat_timeout * stretch_; }

 private:
  absl::Duration interval_of(const Agent& agent) const;
  absl::Duration timeout_of(const Agent& agent) const;
  absl::Duration suspect_after(const Agent& agent) const;
  absl::Status Validate(const RegisterAgent& request) const;
  // Agents that stand in the way of this registration; ALREADY_EXISTS when one of them is
  // connected.
  absl::StatusOr<std::set<std::string>> Conflicts(const RegisterAgent& request) const;
  // Takes it in; names and devices are free.
  void Insert(const RegisterAgent& request, absl::Time now, AgentState state);
  void Lose(Agent* agent, const std::string& reason);
  void Forget(const std::string& incarnation);
  std::vector<AssignmentRef> AssignmentsOf(const Agent& agent) const;
  void SignOfLife(Agent* agent, absl::Time now);
  void SetState(Agent* agent, AgentState state, std::string reason);
  void Recount(Worker* worker);
  void Count(const Worker& worker, int by);
  void RecountAll(const Agent& agent);
  void UpdateStretch();
  void Hold(Worker* worker);   // its new assignment
  void LetGo(Worker* worker);  // of its assignment
  void NotAwaited(Agent* agent);
  void LookAt(Agent* agent, absl::Time when);
  // Moves the agent along its arrows; when to look again, or how it was lost.
  struct Look {
    absl::Time next;
    std::optional<std::string> lost;
  };
  Look LookNow(Agent* agent, absl::Time now, const JobSilenceOf& job_silence);
  // All jobs that it works for recover.
  static bool OnlyRecovers(const Agent& agent, const JobSilenceOf& job_silence);
  SilenceDecision Judge(const Agent& agent, absl::Time now, const JobSilenceOf& job_silence) const;
  void Shift(absl::Duration by);
  void SaveAgent(const std::string& incarnation, DurableChanges* changes) const;
  void SaveReports(const std::string& incarnation, DurableChanges* changes) const;
  void SetHold(const std::string& worker, const WorkerHold& hold);
  void SaveHold(const std::string& key, DurableChanges* changes) const;
  absl::Status RestoreHold(const std::string& key, const std::string& value);
  absl::Status RestoreAgent(const std::string& key, const std::string& incarnation,
                            const std::string& value, absl::Time now);
  static std::string DeviceKey(const std::string& node, const WorkerInfo& info);

  const MembershipOptions options_;
  std::map<std::string, Agent> agents_;    // by incarnation; a lost one until its names are taken
  std::map<std::string, Worker> workers_;  // by name
  std::unordered_map<StreamId, Agent*> streams_;
  std::map<std::pair<absl::Time, int64_t>, Agent*> looks_;  // by look_at and order
  int64_t next_order_ = 1;
  std::map<std::string, JobActivity> activity_;  // by job, of ranks that are held
  std::unordered_map<std::string, std::set<std::string>> devices_;  // "node cuda:0" -> workers
  std::map<DeviceKind, WorkerSupply> supply_;
  int num_live_workers_ = 0;  // of agents that are not lost
  int num_awaited_ = 0;
  int64_t num_lost_batches_ = 0;
  std::set<std::string> unsaved_agents_, unsaved_reports_;  // incarnations
  std::set<std::string> unsaved_holds_;                     // keys of records
  std::map<std::string, WorkerHold> holds_;                 // by name; outlive a registration
  std::vector<AgentNews> news_;
  int stretch_ = 1;
  int64_t generation_ = 0;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Duration stood_still_;
};

}  // namespace muster
