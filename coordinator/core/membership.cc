#include "coordinator/core/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
const char* AgentStateName(AgentState state) {
  switch (state) {
    case AgentState::kJoining:
      return "joining";
    case AgentState::kAlive:
      return "alive";
    case AgentState::kSuspect:
      return "suspect";
    case AgentState::kLost:
      return "lost";
  }
  return "?";
}

absl::StatusOr<const Agent*> Membership::Open(const OpenStream& open, absl::Time now,
                                              StreamId* replaced) {
  const auto found = agents_.find(open.incarnation);
  if (found == agents_.end()) {
    return absl::AbortedError("this incarnation is not known here; register first");
  }
  Agent& agent = found->second;
  if (agent.state == AgentState::kLost) {
    return absl::AbortedError(absl::StrCat("this incarnation is over (", agent.reason,
                                           "); end its trainers and register with a new one"));
  }
  *replaced = agent.stream;
  if (agent.stream != 0) streams_.erase(agent.stream);
  agent.stream = open.stream;
  streams_[open.stream] = agent.incarnation;
  SignOfLife(&agent, now);
  return &agent;
}

void Membership::Close(StreamId stream, absl::Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  Agent& agent = agents_.at(found->second);
  streams_.erase(found);
  agent.stream = 0;
  // The break itself is the last that was heard of it: the limit runs from here.
  agent.last_sign = std::max(agent.last_sign, now);
  agent.state = AgentState::kSuspect;
  agent.reason = "its stream broke";
  ++generation_;
}

absl::Status Membership::Beat(const Heartbeat& heartbeat, absl::Time now) {
  const auto found = streams_.find(heartbeat.stream);
  if (found == streams_.end()) return absl::AbortedError("this stream is over");
  Agent& agent = agents_.at(found->second);
  agent.heartbeat_sequence = std::max(agent.heartbeat_sequence, heartbeat.sequence);
  SignOfLife(&agent, now);
  return absl::OkStatus();
}

absl::StatusOr<bool> Membership::AcceptBatch(StreamId stream, int64_t sequence, absl::Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return absl::AbortedError("this stream is over");
  Agent& agent = agents_.at(found->second);
  SignOfLife(&agent, now);
  if (sequence <= agent.reports_through) return false;
  if (sequence > agent.reports_through + 1) {
    return absl::FailedPreconditionError(absl::StrCat("report batch ", sequence, " came, but ",
                                                      agent.reports_through + 1, " is next"));
  }
  agent.reports_through = sequence;
  return true;
}

std::vector<LostAgent> Membership::Tick(absl::Time now) {
  const absl::Duration away = now - last_tick_;
  const bool stood_still = last_tick_ != absl::InfinitePast() && away > heartbeat_interval();
  last_tick_ = now;
  std::vector<LostAgent> lost;
  for (auto& [incarnation, agent] : agents_) {
    if (agent.state == AgentState::kLost) continue;
    if (stood_still) agent.last_sign = std::min(now, agent.last_sign + away);
    const absl::Duration quiet = now - agent.last_sign;
    const bool joining = agent.state == AgentState::kJoining;
    if (quiet > (joining ? options_.join_timeout : heartbeat_timeout())) {
      const StreamId stream = agent.stream;
      Lose(&agent, absl::StrCat("no sign of life for ", absl::FormatDuration(quiet),
                                stream == 0 ? ", its stream is gone" : ""));
      lost.push_back({incarnation, agent.reason, stream, AssignmentsOf(agent)});
    } else if (!joining && agent.state == AgentState::kAlive && quiet > 2 * heartbeat_interval()) {
      agent.state = AgentState::kSuspect;
      agent.reason = absl::StrCat("no heartbeat for ", absl::FormatDuration(quiet));
      ++generation_;
    }
  }
  return lost;
}

absl::Status Membership::Drain(const std::string& worker, bool undo) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) {
    return absl::NotFoundError(absl::StrCat("worker \"", worker, "\" is not known"));
  }
  found->second.draining = !undo;
  ++generation_;
  if (undo) {
    drained_.erase(worker);
  } else {
    drained_.insert(worker);
  }
  return absl::OkStatus();
}

void Membership::Assign(const AssignmentRef& assignment) {
  Worker& worker = workers_.at(assignment.worker);
  MUSTER_CHECK(!worker.assignment.has_value());
  worker.assignment = assignment;
  ++generation_;
  worker.phase = "";
}

void Membership::Release(const AssignmentRef& assignment) {
  const auto found = workers_.find(assignment.worker);
  if (found == workers_.end() || found->second.assignment != assignment) return;
  found->second.assignment.reset();
  ++generation_;
  found->second.phase = "";
}

void Membership::SetPhase(const std::string& worker, const std::string& phase) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) found->second.phase = phase;
}

const Agent* Membership::FindAgent(const std::string& incarnation) const {
  const auto found = agents_.find(incarnation);
  return found == agents_.end() ? nullptr : &found->second;
}

const Agent* Membership::FindStream(StreamId stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &agents_.at(found->second);
}

const Agent* Membership::AgentOf(const std::string& worker) const {
  const Worker* found = FindWorker(worker);
  return found == nullptr ? nullptr : FindAgent(found->incarnation);
}

const Worker* Membership::FindWorker(const std::string& name) const {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

bool Membership::IsIdle(const Worker& worker) const {
  return !worker.assignment.has_value() && !worker.draining &&
         agents_.at(worker.incarnation).state == AgentState::kAlive;
}

void Membership::SignOfLife(Agent* agent, absl::Time now) {
  agent->last_sign = now;
  if (agent->state != AgentState::kAlive) ++generation_;
  agent->state = AgentState::kAlive;
  agent->reason = "";
}

void Membership::Lose(Agent* agent, const std::string& reason) {
  if (agent->stream != 0) streams_.erase(agent->stream);
  agent->stream = 0;
  agent->state = AgentState::kLost;
  ++generation_;
  agent->reason = reason;
}

std::vector<AssignmentRef> Membership::AssignmentsOf(const Agent& agent) const {
  std::vector<AssignmentRef> assignments;
  for (const std::string& name : agent.workers) {
    const Worker& worker = workers_.at(name);
    if (worker.assignment.has_value()) assignments.push_back(*worker.assignment);
  }
  return assignments;
}

void Membership::Forget(const std::string& incarnation) {
  Agent& agent = agents_.at(incarnation);
  if (agent.stream != 0) streams_.erase(agent.stream);
  for (const std::string& name : agent.workers) {
    const auto worker = workers_.find(name);
    if (worker != workers_.end() && worker->second.incarnation == incarnation) {
      workers_.erase(worker);
    }
  }
  agents_.erase(incarnation);
}

}  // namespace muster
