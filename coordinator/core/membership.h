// Agents and their workers. An agent is one life of a process (its incarnation); a worker is one
// device of it. Pure.
//
//              1 register          2 stream opens
//   (unknown) ------------> JOINING ------------> ALIVE <----------+
//                              |              3 quiet |            | 4 heard again
//                              | 5 limit              v            |
//                              +------> LOST <----- SUSPECT -------+
//                                            5 limit
//   1 its names and devices are free, or belong to lost agents, or to agents of the same node whose
//   stream
//     broke: that process was started again, and its former life is lost now.
//   2 the agent's stream says its incarnation.
//   3 the stream broke, or no heartbeat came for two intervals.
//   4 a heartbeat came, or a stream opened.
//   5 no sign of life for heartbeat_timeout (JOINING: join_timeout). Final for this incarnation:
//   what it
//     says later is refused with ABORTED, and its process comes back under a new one.
//
// Invariants: a stream belongs to at most one agent; a name and a (node, cuda device) to at most
// one agent that is not lost; a worker's agent exists.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/types.h"

namespace muster {

enum class AgentState { kJoining, kAlive, kSuspect, kLost };
const char* AgentStateName(AgentState state);

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
};

struct Worker {
  WorkerInfo info;
  std::string incarnation;  // of its agent
  bool draining = false;
  std::optional<AssignmentRef> assignment;
  std::string phase;  // last one of its trainer
};

struct LostAgent {
  std::string incarnation, reason;
  StreamId stream = 0;  // to be ended; 0: none
  std::vector<AssignmentRef> assignments;
};

struct MembershipOptions {
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration heartbeat_timeout = absl::Milliseconds(1500);
  absl::Duration join_timeout = absl::Seconds(10);
  int max_workers = 32'768;
  int max_workers_per_agent = 1'024;
  // Beyond this many workers interval and timeout grow in proportion.
  int workers_at_full_rate = 4'096;
};

class Membership {
 public:
  explicit Membership(const MembershipOptions& options) : options_(options) {}

  // Errors: see Register in membership.proto. `lost`: agents that this one has replaced.
  absl::Status Register(const RegisterAgent& request, absl::Time now, std::vector<LostAgent>* lost);
  // ABORTED for an incarnation that is unknown or lost. `replaced`: its former stream, or 0.
  absl::StatusOr<const Agent*> Open(const OpenStream& open, absl::Time now, StreamId* replaced);
  // A stream that is not known any more changes nothing.
  void Close(StreamId stream, absl::Time now);
  // ABORTED for a stream that is not an agent's current one.
  absl::Status Beat(const Heartbeat& heartbeat, absl::Time now);
  // Notes a batch. True: new, take its reports. False: known already. FAILED_PRECONDITION: a gap.
  absl::StatusOr<bool> AcceptBatch(StreamId stream, int64_t sequence, absl::Time now);
  // Moves along arrows 3 and 5; returns the agents that are lost now. Time in which Tick itself was
  // not called (this process stood still) counts for nobody.
  std::vector<LostAgent> Tick(absl::Time now);

  absl::Status Drain(const std::string& worker, bool undo);
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
  // Changes with everything that admission depends on: agents' states, assignments, draining.
  int64_t generation() const { return generation_; }
  // Alive, not draining, without an assignment.
  bool IsIdle(const Worker& worker) const;

  absl::Duration heartbeat_interval() const { return options_.heartbeat_interval * stretch_; }
  absl::Duration heartbeat_timeout() const { return options_.heartbeat_timeout * stretch_; }

 private:
  absl::Status Validate(const RegisterAgent& request) const;
  // Agents that stand in the way of this registration; ALREADY_EXISTS when one of them is
  // connected.
  absl::StatusOr<std::set<std::string>> Conflicts(const RegisterAgent& request) const;
  void Lose(Agent* agent, const std::string& reason);
  void Forget(const std::string& incarnation);
  std::vector<AssignmentRef> AssignmentsOf(const Agent& agent) const;
  void SignOfLife(Agent* agent, absl::Time now);

  const MembershipOptions options_;
  std::map<std::string, Agent> agents_;      // by incarnation; a lost one until its names are taken
  std::map<std::string, Worker> workers_;    // by name
  std::map<StreamId, std::string> streams_;  // -> incarnation
  std::set<std::string> drained_;            // names; outlive a registration
  int stretch_ = 1;
  int64_t generation_ = 0;
  absl::Time last_tick_ = absl::InfinitePast();
};

}  // namespace muster
