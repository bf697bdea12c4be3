// Coordinator's part that looks after workers: what is heard of them, checks of their devices, and
// what people want of them.
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "coordinator/core/coordinator.h"

namespace muster {

void Coordinator::NoteEvent(const std::string& job_id, const std::string& kind,
                            const std::string& text, absl::Time now) {
  JobMachine* job = MutableJob(job_id);
  if (job == nullptr || !IsActive(job->state())) return;
  job->NoteEvent(now, kind, text);
  changed_.insert(job_id);
  Touch(*job);
}

void Coordinator::TellNews(absl::Time now) {
  for (const AgentNews& news : membership_.TakeNews()) {
    const Agent* agent = membership_.FindAgent(news.incarnation);
    if (agent == nullptr) continue;
    std::vector<absl::string_view> names(agent->workers.begin(), agent->workers.end());
    const std::string who =
        absl::StrCat("node ", agent->node, " (workers ", CompressNames(names), ")");
    for (const Agent::Held& held : agent->jobs) {
      if (news.alive) {
        NoteEvent(held.job_id, "heard_again", absl::StrCat(who, " is heard again"), now);
      } else {
        NoteEvent(held.job_id, "suspect", absl::StrCat(who, ": ", news.reason), now);
      }
    }
  }
}

FailureKind Coordinator::NoteLost(const LostAgent& lost, absl::Time now) {
  // The agent itself may be forgotten by now.
  std::string node;
  std::map<std::string, std::vector<absl::string_view>> workers_of_job;
  for (const AssignmentRef& assignment : lost.assignments) {
    workers_of_job[assignment.job_id].push_back(assignment.worker);
    const JobMachine* job = FindJob(assignment.job_id);
    if (job == nullptr || !node.empty()) continue;
    for (const JobMachine::Held& held : job->HeldWorkers()) {
      if (held.assignment.worker == assignment.worker) node = held.slot->node;
    }
  }
  // A node is lost with the last of its workers.
  bool others = false;
  for (const auto& [incarnation, agent] : membership_.agents()) {
    others = others || (incarnation != lost.incarnation && agent.node == node &&
                        agent.state != AgentState::kLost);
  }
  const FailureKind kind =
      others || node.empty() ? FailureKind::kAgentLost : FailureKind::kNodeLost;
  std::string where;
  if (!node.empty()) where = absl::StrCat(others ? "an agent of node " : "node ", node, ", ");
  for (const auto& [job_id, workers] : workers_of_job) {
    NoteEvent(job_id, FailureKindName(kind),
              absl::StrCat(where, "workers ", CompressNames(workers), ": ", lost.reason), now);
  }
  return kind;
}

void Coordinator::OnDeviceCheck(const std::string& worker, const DeviceCheck& check,
                                absl::Time now) {
  const Worker* found = membership_.FindWorker(worker);
  if (found == nullptr) return;
  const Agent* agent = membership_.FindAgent(found->incarnation);
  const DeviceVerdict verdict = devices_.Judge(check, found->info.kind, worker, agent->version);
  if (!verdict.healthy) Quarantine(worker, verdict.reason, now);
}

void Coordinator::Quarantine(const std::string& worker, const std::string& evidence,
                             absl::Time now) {
  if (!membership_.Quarantine(worker, evidence)) return;
  decided_ = true;
  const Worker& held = *membership_.FindWorker(worker);
  if (!held.assignment.has_value()) return;
  NoteEvent(held.assignment->job_id, "quarantined", absl::StrCat("worker ", worker, ": ", evidence),
            now);
}

absl::Status Coordinator::On(const DrainWorker& event, absl::Time now, Outcome* out) {
  RETURN_IF_ERROR(membership_.Drain(event.worker, event.undo));
  decided_ = true;
  Rearrange(now, &out->actions);  // whoever asked hears what becomes of it
  return absl::OkStatus();
}

absl::Status Coordinator::On(const CordonWorker& event, absl::Time now, Outcome* out) {
  decided_ = true;
  if (!event.undo) return membership_.Cordon(event.worker);
  ASSIGN_OR_RETURN(const std::vector<std::string> names, membership_.WorkersNamed(event.worker));
  // A person vouches for the device: its next check makes its record anew.
  for (const std::string& name : names) {
    if (!membership_.HoldOf(name).quarantined.empty()) devices_.Forget(name);
  }
  return membership_.Uncordon(event.worker);
}

absl::Status Coordinator::On(const ReplaceRank& event, absl::Time now, Outcome* out) {
  JobMachine* job = MutableJob(event.job_id);
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("job \"", event.job_id, "\" is not known"));
  }
  if (!IsActive(job->state())) {
    return absl::FailedPreconditionError(absl::StrCat(
        event.job_id, " is ", JobStateName(job->state()), " and has no ranks to move"));
  }
  if (event.rank < 0 || event.rank >= job->world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank=", event.rank, ": ", event.job_id,
                                                   " has ranks 0 to ", job->world_size() - 1));
  }
  const std::string from = job->ranks()[event.rank].worker;
  std::string reason = absl::StrCat("rank ", event.rank, " leaves worker ", from);
  if (!event.reason.empty()) absl::StrAppend(&reason, ": ", event.reason);
  if (event.worker.empty()) {
    RETURN_IF_ERROR(MoveRanks(*job, {event.rank}, reason, now, &out->actions));
  } else {
    RETURN_IF_ERROR(MoveRankTo(*job, event.rank, event.worker, reason, now, &out->actions));
  }
  const auto& change = job->change();
  if (change.has_value() && !change->moves.empty()) {
    out->reply = ReplaceReply{.from = from, .to = change->moves.front().to};
  }
  return absl::OkStatus();
}

// To a worker that a person has named: a spare of the job, or one that is idle.
absl::Status Coordinator::MoveRankTo(JobMachine& job, int rank, const std::string& to,
                                     const std::string& reason, absl::Time now,
                                     std::vector<Action>* actions) {
  const Worker* worker = membership_.FindWorker(to);
  if (worker == nullptr) {
    return absl::NotFoundError(absl::StrCat("worker \"", to, "\" is not known"));
  }
  if (worker->info.kind != job.kind()) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", to, " is of kind ", DeviceKindName(worker->info.kind), "; ",
                     job.job_id(), " needs ", DeviceKindName(job.kind())));
  }
  if (worker->hold.any()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", to, " is ", worker->hold.Text(),
                                                      "; `muster uncordon ", to, "` lifts that"));
  }
  const ExtraSlot* extra = job.FindExtra(to);
  const bool spare = extra != nullptr && extra->role == ExtraSlot::Role::kSpare;
  const bool idle = membership_.IsIdle(*worker);
  if (!spare && !idle) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", to, " is neither idle nor a spare of ", job.job_id(),
                     "; `muster workers` shows "
                     "what it does"));
  }
  PlannedChange change{.reason = reason};
  change.moves.push_back({rank, job.ranks()[rank].worker, to});
  change.needs_spares.push_back(to);
  RETURN_IF_ERROR(job.RequestChange(std::move(change), now));
  if (!spare) TakeSpares(job, {to}, now, actions);
  decided_ = true;
  changed_.insert(job.job_id());
  Touch(job);
  return absl::OkStatus();
}

}  // namespace muster
