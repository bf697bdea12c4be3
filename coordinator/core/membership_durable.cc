// Membership's part that says what must outlive the coordinator, and takes it up again.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "coordinator/core/durable_json.h"
#include "coordinator/core/membership.h"

namespace muster {
namespace {

constexpr EnumName<DeviceKind> kDeviceKinds[] = {{DeviceKind::kCpu, "cpu"},
                                                 {DeviceKind::kCuda, "cuda"}};

struct SavedAgent {
  RegisterAgent agent;
  std::string lost;  // why; "": it is not
  bool is_lost = false;
  int stretch = 1;
};

template <class V, class M>
void VisitAgent(V& v, M& m) {
  v("node", m.agent.node);
  v("version", m.agent.version);
  v("address", m.agent.address);
  v.Always("num_cpus", m.agent.num_cpus);
  v.List("workers", m.agent.workers, [](auto& element, auto& worker) {
    element("name", worker.name);
    element("device", worker.device);
    element.Enum("kind", worker.kind, kDeviceKinds);
    element("index", worker.index);
  });
  v("is_lost", m.is_lost);
  v("lost", m.lost);
  v.Always("stretch", m.stretch);
}

std::string AgentKey(const std::string& incarnation) {
  return absl::StrCat("agent/", ToHex(incarnation));
}

absl::Status Bad(absl::string_view record, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(record, ": ", what));
}

}  // namespace

void Membership::SaveAgent(const std::string& incarnation, DurableChanges* changes) const {
  const Agent* agent = FindAgent(incarnation);
  if (agent == nullptr) {
    changes->records.push_back({AgentKey(incarnation), std::nullopt});
    changes->records.push_back({absl::StrCat(AgentKey(incarnation), "/reports"), std::nullopt});
    return;
  }
  SavedAgent saved;
  saved.agent.node = agent->node;
  saved.agent.version = agent->version;
  saved.agent.address = agent->address;
  saved.agent.num_cpus = agent->num_cpus;
  for (const std::string& name : agent->workers) {
    saved.agent.workers.push_back(workers_.at(name).info);
  }
  saved.is_lost = agent->state == AgentState::kLost;
  if (saved.is_lost) saved.lost = agent->reason;
  saved.stretch = agent->stretch;
  JsonWriter writer;
  VisitAgent(writer, saved);
  changes->records.push_back({AgentKey(incarnation), writer.Finish()});
}

void Membership::SaveReports(const std::string& incarnation, DurableChanges* changes) const {
  const Agent* agent = FindAgent(incarnation);
  if (agent == nullptr) return;
  DurableRecord record{absl::StrCat(AgentKey(incarnation), "/reports"), std::nullopt};
  if (agent->reports_through > 0) {
    record.value = absl::StrCat("{\"through\":", agent->reports_through, "}");
  }
  changes->records.push_back(std::move(record));
}

void Membership::TakeChanges(DurableChanges* changes) {
  for (const std::string& incarnation : unsaved_agents_) SaveAgent(incarnation, changes);
  for (const std::string& incarnation : unsaved_reports_) SaveReports(incarnation, changes);
  for (const std::string& key : unsaved_holds_) SaveHold(key, changes);
  unsaved_agents_.clear();
  unsaved_reports_.clear();
  unsaved_holds_.clear();
}

void Membership::SaveAll(DurableChanges* changes) const {
  for (const auto& [incarnation, agent] : agents_) {
    SaveAgent(incarnation, changes);
    if (agent.reports_through > 0) SaveReports(incarnation, changes);
  }
  for (const auto& [worker, hold] : holds_) {
    if (hold.draining) SaveHold(absl::StrCat("drained/", worker), changes);
    if (hold.cordoned) SaveHold(absl::StrCat("cordoned/", worker), changes);
    if (!hold.quarantined.empty()) SaveHold(absl::StrCat("quarantined/", worker), changes);
  }
}

// "agent/x/reports" comes after "agent/x", and holds after all agents: keys are sorted.
absl::Status Membership::RestoreRecord(const std::string& key, const std::string& value,
                                       absl::Time now) {
  absl::string_view rest = key;
  if (!absl::StartsWith(rest, "agent/")) return RestoreHold(key, value);
  absl::ConsumePrefix(&rest, "agent/");
  const bool reports = absl::ConsumeSuffix(&rest, "/reports");
  std::string incarnation;
  if (!FromHex(rest, &incarnation)) {
    // Of a later version, unless it is no name at all.
    return absl::StrContains(rest, "/") ? absl::OkStatus() : Bad(key, "must end in hex digits");
  }
  if (!reports) return RestoreAgent(key, incarnation, value, now);
  const auto agent = agents_.find(incarnation);
  if (agent == agents_.end()) return Bad(key, "the agent's own record is missing");
  JsonReader reader(key, value);
  reader("through", agent->second.reports_through);
  reader.Check(
      agent->second.reports_through >= 0 && agent->second.reports_through < int64_t{1} << 62,
      "through", "must be 0 or more, and not that large");
  return reader.status();
}

absl::Status Membership::RestoreAgent(const std::string& key, const std::string& incarnation,
                                      const std::string& value, absl::Time now) {
  SavedAgent saved;
  JsonReader reader(key, value);
  VisitAgent(reader, saved);
  reader.Check(saved.stretch >= 1 && saved.stretch <= 1'000'000, "stretch", "must be 1 to 1000000");
  RETURN_IF_ERROR(reader.status());
  saved.agent.incarnation = incarnation;
  RETURN_IF_ERROR(Annotate(Validate(saved.agent), key));
  for (const WorkerInfo& info : saved.agent.workers) {
    if (const Worker* other = FindWorker(info.name)) {
      return Bad(key, absl::StrCat("worker ", info.name, " belongs to ",
                                   AgentKey(other->incarnation), " too"));
    }
    const auto device = devices_.find(DeviceKey(saved.agent.node, info));
    if (saved.is_lost || device == devices_.end()) continue;
    for (const std::string& name : device->second) {
      const std::string& holder = workers_.at(name).incarnation;
      if (agents_.at(holder).state == AgentState::kLost) continue;
      return Bad(key, absl::StrCat(info.device, " of ", saved.agent.node, " belongs to ",
                                   AgentKey(holder), " too"));
    }
  }
  Insert(saved.agent, now, saved.is_lost ? AgentState::kLost : AgentState::kSuspect);
  Agent& agent = agents_.at(incarnation);
  agent.stretch = saved.stretch;
  if (saved.is_lost) {
    agent.reason = saved.lost;
    return absl::OkStatus();
  }
  agent.reason = "the coordinator was restarted and waits for it";
  agent.resumes_reports = true;
  agent.awaited_until = now + options_.readoption_limit;
  ++num_awaited_;
  LookAt(&agent,
         std::min(*agent.awaited_until, now + timeout_of(agent) + options_.readoption_margin));
  return absl::OkStatus();
}

absl::Status Membership::RestoreAssignment(const AssignmentRef& assignment,
                                           const std::string& incarnation,
                                           const std::string& phase) {
  const auto found = workers_.find(assignment.worker);
  if (found == workers_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", assignment.worker, " is not there"));
  }
  Worker& worker = found->second;
  const bool other_life = !incarnation.empty() && worker.incarnation != incarnation;
  if (other_life || agents_.at(worker.incarnation).state == AgentState::kLost) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", assignment.worker, " belongs to ", AgentKey(worker.incarnation),
                     other_life ? ", another life of its agent" : ", which is lost"));
  }
  if (worker.assignment.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", assignment.worker, " is held by ",
                                                   worker.assignment->job_id, " too, as rank ",
                                                   worker.assignment->rank));
  }
  Assign(assignment);
  worker.phase = phase;
  return absl::OkStatus();
}

}  // namespace muster
