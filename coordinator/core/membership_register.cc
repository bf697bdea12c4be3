// Membership's part that lets agents in.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "coordinator/core/membership.h"

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
    // Its node is heard, so it is not the network that keeps it silent.
    const bool gone = agent.stream == 0 || last_tick_ - agent.last_sign > timeout_of(agent);
    const bool started_again =
        agent.state == AgentState::kSuspect && gone && agent.node == request.node;
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
  for (const WorkerInfo& worker : request.workers) {
    const auto device = devices_.find(DeviceKey(request.node, worker));
    if (device == devices_.end()) continue;
    for (const std::string& name : device->second) {
      RETURN_IF_ERROR(check(workers_.at(name), absl::StrCat(worker.device, " of ", request.node)));
    }
  }
  return in_the_way;
}

// "": a device that any number of workers may share.
std::string Membership::DeviceKey(const std::string& node, const WorkerInfo& info) {
  return info.kind == DeviceKind::kCuda ? absl::StrCat(node, " ", info.device) : "";
}

absl::Status Membership::Register(const RegisterAgent& request, absl::Time now,
                                  std::vector<LostAgent>* lost) {
  RETURN_IF_ERROR(Validate(request));
  if (const auto known = agents_.find(request.incarnation); known != agents_.end()) {
    Agent& agent = known->second;
    if (agent.state == AgentState::kLost) {
      return absl::AbortedError(absl::StrCat("this incarnation is over (", agent.reason,
                                             "); end its trainers and register with a new one"));
    }
    if (agent.stretch != stretch_) unsaved_agents_.insert(agent.incarnation);
    agent.stretch = stretch_;  // it is told again
    return absl::OkStatus();   // repeated
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
    const int num_agents = static_cast<int>(agents_.size() - in_the_way.size());
    if (after <= options_.max_workers && num_agents < options_.max_agents) break;
    if (agents_.at(incarnation).state != AgentState::kLost || in_the_way.contains(incarnation)) {
      continue;
    }
    Forget(incarnation);
  }
  if (static_cast<int>(workers_.size() + request.workers.size()) - freed > options_.max_workers) {
    return absl::ResourceExhaustedError(absl::StrCat("the cluster has ", workers_.size(),
                                                     " workers; limit ", options_.max_workers));
  }
  if (static_cast<int>(agents_.size() - in_the_way.size()) >= options_.max_agents) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cluster has ", agents_.size(), " agents; limit ", options_.max_agents));
  }
  for (const std::string& incarnation : in_the_way) {
    if (agents_.at(incarnation).state != AgentState::kLost) {
      lost->push_back({.incarnation = incarnation,
                       .reason = "its agent was started again",
                       .stream = agents_.at(incarnation).stream,
                       .assignments = AssignmentsOf(agents_.at(incarnation))});
    }
    Forget(incarnation);
  }
  Insert(request, now, AgentState::kJoining);
  Agent& agent = agents_.at(request.incarnation);
  agent.reason = "its stream is not open yet";
  agent.stretch = stretch_;
  LookAt(&agent, now + options_.join_timeout);
  unsaved_agents_.insert(request.incarnation);
  unsaved_reports_.insert(request.incarnation);  // none: its former life's record must go
  return absl::OkStatus();
}

void Membership::Insert(const RegisterAgent& request, absl::Time now, AgentState state) {
  Agent& agent = agents_[request.incarnation];
  agent = {.incarnation = request.incarnation,
           .node = request.node,
           .version = request.version,
           .address = request.address,
           .num_cpus = std::max(1, request.num_cpus),
           .state = state,
           .last_sign = now,
           .order = next_order_++};
  for (const WorkerInfo& info : request.workers) {
    agent.workers.push_back(info.name);
    const auto hold = holds_.find(info.name);
    workers_[info.name] = {.info = info,
                           .incarnation = request.incarnation,
                           .hold = hold == holds_.end() ? WorkerHold{} : hold->second};
    const std::string device = DeviceKey(request.node, info);
    if (!device.empty()) devices_[device].insert(info.name);
  }
  RecountAll(agent);
  ++generation_;
  if (state == AgentState::kLost) return;
  num_live_workers_ += static_cast<int>(agent.workers.size());
  UpdateStretch();
}

}  // namespace muster
