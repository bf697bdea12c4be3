#include "coordinator/core/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr int64_t kMaxLostBatches = 100'000;  // that a gap after a restore may be long

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
  streams_[open.stream] = &agent;
  SignOfLife(&agent, now);
  return &agent;
}

void Membership::Close(StreamId stream, absl::Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  Agent& agent = *found->second;
  streams_.erase(found);
  agent.stream = 0;
  if (now - agent.last_sign <= timeout_of(agent)) {
    // The break itself is the last that was heard of it: the limit runs from here.
    agent.last_sign = std::max(agent.last_sign, now);
    agent.closed_at = now;
  }
  SetState(&agent, AgentState::kSuspect, "its stream broke");
  LookAt(&agent, std::min(agent.look_at, agent.last_sign + timeout_of(agent)));
}

absl::StatusOr<LostAgent> Membership::Leave(const LeaveAgent& leave) {
  const auto found = streams_.find(leave.stream);
  if (found == streams_.end()) return absl::AbortedError("this stream is over");
  Agent& agent = *found->second;
  LostAgent lost{
      agent.incarnation,
      absl::StrCat("its agent left", leave.reason.empty() ? "" : absl::StrCat(": ", leave.reason)),
      leave.stream, AssignmentsOf(agent)};
  Forget(lost.incarnation);
  return lost;
}

absl::Status Membership::Beat(const Heartbeat& heartbeat, absl::Time now) {
  const auto found = streams_.find(heartbeat.stream);
  if (found == streams_.end()) return absl::AbortedError("this stream is over");
  Agent& agent = *found->second;
  agent.heartbeat_sequence = std::max(agent.heartbeat_sequence, heartbeat.sequence);
  SignOfLife(&agent, now);
  for (const TrainerProgress& progress : heartbeat.progress) {
    for (const Agent::Held& held : agent.jobs) {
      if (held.job_id != progress.job_id) continue;
      NoteProgress(progress.job_id, progress.epoch, progress.iteration, now);
      break;
    }
  }
  return absl::OkStatus();
}

void Membership::NoteProgress(const std::string& job_id, int64_t epoch, int64_t iteration,
                              absl::Time now) {
  const auto found = activity_.find(job_id);
  if (found == activity_.end()) return;
  JobActivity& activity = found->second;
  if (std::pair(epoch, iteration) <= std::pair(activity.epoch, activity.iteration)) return;
  activity.epoch = epoch;
  activity.iteration = iteration;
  activity.progress = now;
}

absl::StatusOr<bool> Membership::AcceptBatch(StreamId stream, int64_t sequence, absl::Time now) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return absl::AbortedError("this stream is over");
  Agent& agent = *found->second;
  SignOfLife(&agent, now);
  if (sequence <= agent.reports_through) return false;
  if (sequence - 1 > agent.reports_through) {
    const int64_t num_lost = sequence - 1 - agent.reports_through;
    if (!agent.resumes_reports || num_lost > kMaxLostBatches) {
      return absl::FailedPreconditionError(absl::StrCat("report batch ", sequence, " came, but ",
                                                        agent.reports_through + 1, " is next"));
    }
    num_lost_batches_ += num_lost;
  }
  agent.resumes_reports = false;
  agent.reports_through = sequence;
  unsaved_reports_.insert(agent.incarnation);
  return true;
}

// ---- assignments

void Membership::Assign(const AssignmentRef& assignment) {
  Worker& worker = workers_.at(assignment.worker);
  MUSTER_CHECK(!worker.assignment.has_value());
  worker.assignment = assignment;
  worker.phase = "";
  Hold(&worker);
}

void Membership::Release(const AssignmentRef& assignment) {
  const auto found = workers_.find(assignment.worker);
  if (found == workers_.end() || found->second.assignment != assignment) return;
  LetGo(&found->second);
}

void Membership::Hold(Worker* worker) {
  ++generation_;
  Recount(worker);
  const AssignmentRef& held = *worker->assignment;
  if (held.rank < 0) return;  // a spare trains nothing
  JobActivity& activity = activity_[held.job_id];
  ++activity.num_held;
  Agent& agent = agents_.at(worker->incarnation);
  for (Agent::Held& job : agent.jobs) {
    if (job.activity != &activity) continue;
    ++job.num_ranks;
    return;
  }
  agent.jobs.push_back({&activity, held.job_id, 1});
}

void Membership::LetGo(Worker* worker) {
  const AssignmentRef held = *std::exchange(worker->assignment, std::nullopt);
  worker->phase = "";
  ++generation_;
  Recount(worker);
  if (held.rank < 0) return;
  Agent& agent = agents_.at(worker->incarnation);
  const auto job = std::find_if(agent.jobs.begin(), agent.jobs.end(),
                                [&](const Agent::Held& j) { return j.job_id == held.job_id; });
  MUSTER_CHECK(job != agent.jobs.end());
  JobActivity* activity = job->activity;
  if (--job->num_ranks == 0) agent.jobs.erase(job);
  if (--activity->num_held == 0) activity_.erase(held.job_id);
}

void Membership::SetPhase(const std::string& worker, const std::string& phase) {
  const auto found = workers_.find(worker);
  if (found != workers_.end() && found->second.assignment.has_value()) {
    found->second.phase = phase;
  }
}

std::vector<AssignmentRef> Membership::AssignmentsOf(const Agent& agent) const {
  std::vector<AssignmentRef> assignments;
  for (const std::string& name : agent.workers) {
    const Worker& worker = workers_.at(name);
    if (worker.assignment.has_value()) assignments.push_back(*worker.assignment);
  }
  return assignments;
}

// ---- finding

const Agent* Membership::FindAgent(const std::string& incarnation) const {
  const auto found = agents_.find(incarnation);
  return found == agents_.end() ? nullptr : &found->second;
}

const Agent* Membership::FindStream(StreamId stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

const Agent* Membership::AgentOf(const std::string& worker) const {
  const Worker* found = FindWorker(worker);
  return found == nullptr ? nullptr : FindAgent(found->incarnation);
}

const Worker* Membership::FindWorker(const std::string& name) const {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

// ---- states

void Membership::SignOfLife(Agent* agent, absl::Time now) {
  agent->last_sign = now;
  for (const Agent::Held& job : agent->jobs) {
    if (now - job.activity->heard > timeout_of(*agent)) job.activity->heard_since = now;
    job.activity->heard = now;
  }
  if (agent->state == AgentState::kAlive) return;
  agent->closed_at.reset();
  NotAwaited(agent);
  SetState(agent, AgentState::kAlive, "");
  LookAt(agent, now + suspect_after(*agent));
}

void Membership::SetState(Agent* agent, AgentState state, std::string reason) {
  agent->reason = std::move(reason);
  if (agent->state == state) return;
  const bool was_live = agent->state != AgentState::kLost;
  agent->state = state;
  if (state == AgentState::kSuspect || (state == AgentState::kAlive && agent->told_suspect)) {
    agent->told_suspect = state == AgentState::kSuspect;
    news_.push_back({agent->incarnation, state == AgentState::kAlive, agent->reason});
  }
  ++generation_;
  if (was_live && state == AgentState::kLost) {
    num_live_workers_ -= static_cast<int>(agent->workers.size());
    UpdateStretch();
  }
  RecountAll(*agent);
}

void Membership::Recount(Worker* worker) {
  const AgentState state = agents_.at(worker->incarnation).state;
  Worker::Use use = Worker::Use::kUnheard;
  if (state == AgentState::kLost) {
    use = Worker::Use::kAway;
  } else if (!worker->hold.quarantined.empty()) {
    use = Worker::Use::kQuarantined;
  } else if (worker->hold.draining) {
    use = Worker::Use::kDraining;
  } else if (worker->hold.cordoned) {
    use = Worker::Use::kCordoned;
  } else if (state == AgentState::kAlive) {
    use = worker->assignment.has_value() ? Worker::Use::kBusy : Worker::Use::kIdle;
  }
  Count(*worker, -1);
  worker->use = use;
  Count(*worker, +1);
}

void Membership::Count(const Worker& worker, int by) {
  WorkerSupply& supply = supply_[worker.info.kind];
  switch (worker.use) {
    case Worker::Use::kAway:
      return;
    case Worker::Use::kIdle:
      supply.num_idle += by;
      [[fallthrough]];
    case Worker::Use::kBusy:
      supply.num_usable += by;
      return;
    case Worker::Use::kDraining:
      supply.num_draining += by;
      return;
    case Worker::Use::kCordoned:
      supply.num_cordoned += by;
      return;
    case Worker::Use::kQuarantined:
      supply.num_quarantined += by;
      return;
    case Worker::Use::kUnheard:
      supply.num_unheard += by;
      return;
  }
}

void Membership::RecountAll(const Agent& agent) {
  for (const std::string& name : agent.workers) Recount(&workers_.at(name));
}

void Membership::UpdateStretch() {
  const int full = options_.workers_at_full_rate;
  stretch_ = std::max(1, (num_live_workers_ + full - 1) / full);
}

void Membership::NotAwaited(Agent* agent) {
  if (agent->awaited_until.has_value()) --num_awaited_;
  agent->awaited_until.reset();
}

void Membership::Lose(Agent* agent, const std::string& reason) {
  if (agent->stream != 0) streams_.erase(agent->stream);
  agent->stream = 0;
  NotAwaited(agent);
  LookAt(agent, absl::InfiniteFuture());
  SetState(agent, AgentState::kLost, reason);
  unsaved_agents_.insert(agent->incarnation);
}

void Membership::Forget(const std::string& incarnation) {
  Agent& agent = agents_.at(incarnation);
  if (agent.state != AgentState::kLost) Lose(&agent, "forgotten");
  for (const std::string& name : agent.workers) {
    const auto found = workers_.find(name);
    Worker& worker = found->second;
    if (worker.assignment.has_value()) LetGo(&worker);
    const auto device = devices_.find(DeviceKey(agent.node, worker.info));
    if (device != devices_.end()) {
      device->second.erase(name);
      if (device->second.empty()) devices_.erase(device);
    }
    workers_.erase(found);
  }
  agents_.erase(incarnation);
  unsaved_agents_.insert(incarnation);
  unsaved_reports_.erase(incarnation);
}

}  // namespace muster
