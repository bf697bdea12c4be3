#include "coordinator/core/membership.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int kProtocolVersion = 1;

// Names travel in file names, tables and metrics: letters, digits and . _ - / only.
absl::Status CheckName(absl::string_view field, absl::string_view name) {
  const bool good =
      !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(c) || absl::StrContains("._-/", c);
      });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, "=\"", absl::CHexEscape(name.substr(0, 160)),
                   "\": must have 1 to 128 letters, digits or . _ - /"));
}

absl::Status CheckDevice(const WorkerInfo& worker) {
  absl::string_view device = worker.device;
  int ordinal = 0;
  const bool good = worker.kind == DeviceKind::kCpu
                        ? device == "cpu"
                        : absl::ConsumePrefix(&device, "cuda:") &&
                              absl::SimpleAtoi(device, &ordinal) && ordinal >= 0;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("workers.device=\"", absl::CHexEscape(worker.device.substr(0, 64)), "\" of ",
                   worker.name, ": must be \"cpu\" for kind cpu and \"cuda:N\" for kind cuda"));
}

}  // namespace

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

absl::Status Membership::Validate(const RegisterAgent& request) const {
  if (request.incarnation.size() < 8 || request.incarnation.size() > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation: has ", request.incarnation.size(), " bytes; must have 8 to 64"));
  }
  if (request.protocol_version != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("protocol_version=", request.protocol_version, ": this coordinator speaks ",
                     kProtocolVersion, "; update the older of the two"));
  }
  RETURN_IF_ERROR(CheckName("node", request.node));
  const int num_workers = static_cast<int>(request.workers.size());
  if (num_workers < 1 || num_workers > options_.max_workers_per_agent) {
    return absl::InvalidArgumentError(absl::StrCat(
        "workers: has ", num_workers, " entries; must have 1 to ", options_.max_workers_per_agent));
  }
  std::set<std::string> names, devices;
  for (const WorkerInfo& worker : request.workers) {
    RETURN_IF_ERROR(CheckName("workers.name", worker.name));
    RETURN_IF_ERROR(CheckDevice(worker));
    if (!names.insert(worker.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers.name=\"", worker.name, "\" appears twice"));
    }
    if (worker.kind == DeviceKind::kCuda && !devices.insert(worker.device).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers.device=\"", worker.device, "\" appears twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> Membership::Conflicts(const RegisterAgent& request) const {
  std::set<std::string> in_the_way;
  const auto check = [&](const Worker& other, absl::string_view what) -> absl::Status {
    const Agent& agent = agents_.at(other.incarnation);
    if (agent.incarnation == request.incarnation) return absl::OkStatus();
    const bool started_again =
        agent.state == AgentState::kSuspect && agent.stream == 0 && agent.node == request.node;
    if (agent.state != AgentState::kLost && !started_again) {
      return absl::AlreadyExistsError(
          absl::StrCat(what, " is held by worker ", other.info.name, " of an agent on ", agent.node,
                       " (", agent.address, ") that is ", AgentStateName(agent.state),
                       "; give this one another name or stop the other"));
    }
    in_the_way.insert(agent.incarnation);
    return absl::OkStatus();
  };
  for (const WorkerInfo& worker : request.workers) {
    if (const Worker* other = FindWorker(worker.name)) {
      RETURN_IF_ERROR(check(*other, absl::StrCat("worker name ", worker.name)));
    }
  }
  // One device is one worker's: two trainers on one GPU would share its memory and its clock.
  for (const auto& [name, other] : workers_) {
    const Agent& agent = agents_.at(other.incarnation);
    if (agent.node != request.node || other.info.kind != DeviceKind::kCuda) continue;
    for (const WorkerInfo& worker : request.workers) {
      if (worker.kind != DeviceKind::kCuda || worker.device != other.info.device) continue;
      RETURN_IF_ERROR(check(other, absl::StrCat(worker.device, " of ", request.node)));
    }
  }
  return in_the_way;
}

absl::Status Membership::Register(const RegisterAgent& request, absl::Time now,
                                  std::vector<LostAgent>* lost) {
  RETURN_IF_ERROR(Validate(request));
  if (const Agent* known = FindAgent(request.incarnation)) {
    if (known->state == AgentState::kLost) {
      return absl::AbortedError(absl::StrCat("this incarnation is over (", known->reason,
                                             "); end its trainers and register with a new one"));
    }
    return absl::OkStatus();  // repeated
  }
  ASSIGN_OR_RETURN(const std::set<std::string> in_the_way, Conflicts(request));
  int freed = 0;
  for (const std::string& incarnation : in_the_way) {
    freed += static_cast<int>(agents_.at(incarnation).workers.size());
  }
  // Lost workers are kept for people to see; they make room for live ones.
  for (auto it = agents_.begin(); it != agents_.end();) {
    const std::string incarnation = (it++)->first;
    const int after = static_cast<int>(workers_.size() + request.workers.size()) - freed;
    if (after <= options_.max_workers) break;
    if (agents_.at(incarnation).state != AgentState::kLost || in_the_way.contains(incarnation)) {
      continue;
    }
    Forget(incarnation);
  }
  if (static_cast<int>(workers_.size() + request.workers.size()) - freed > options_.max_workers) {
    return absl::ResourceExhaustedError(absl::StrCat("the cluster has ", workers_.size(),
                                                     " workers; limit ", options_.max_workers));
  }
  for (const std::string& incarnation : in_the_way) {
    if (agents_.at(incarnation).state != AgentState::kLost) {
      lost->push_back({.incarnation = incarnation,
                       .reason = "its agent was started again",
                       .assignments = AssignmentsOf(agents_.at(incarnation))});
    }
    Forget(incarnation);
  }
  Agent agent{.incarnation = request.incarnation,
              .node = request.node,
              .version = request.version,
              .address = request.address,
              .num_cpus = std::max(1, request.num_cpus),
              .reason = "its stream is not open yet",
              .last_sign = now};
  for (const WorkerInfo& info : request.workers) {
    agent.workers.push_back(info.name);
    workers_[info.name] = {
        .info = info, .incarnation = request.incarnation, .draining = drained_.contains(info.name)};
  }
  agents_[request.incarnation] = std::move(agent);
  ++generation_;
  stretch_ =
      std::max<int>(1, (static_cast<int>(workers_.size()) + options_.workers_at_full_rate - 1) /
                           options_.workers_at_full_rate);
  return absl::OkStatus();
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
