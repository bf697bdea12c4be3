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

}  // namespace muster
