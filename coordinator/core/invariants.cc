#include "coordinator/core/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

void CheckWorkers(const Coordinator& coordinator, std::vector<std::string>* wrong) {
  const Membership& members = coordinator.membership();
  std::set<StreamId> streams;
  for (const auto& [incarnation, agent] : members.agents()) {
    if (agent.stream != 0 && !streams.insert(agent.stream).second) {
      wrong->push_back(absl::StrCat("stream ", agent.stream, " belongs to two agents"));
    }
    if (agent.state == AgentState::kLost && agent.stream != 0) {
      wrong->push_back(absl::StrCat("agent on ", agent.node, " is lost and has a stream"));
    }
    if (agent.state == AgentState::kAlive && agent.stream == 0) {
      wrong->push_back(absl::StrCat("agent on ", agent.node, " is alive without a stream"));
    }
  }
  std::set<std::string> devices;
  for (const auto& [name, worker] : members.workers()) {
    const Agent* agent = members.FindAgent(worker.incarnation);
    if (agent == nullptr) {
      wrong->push_back(absl::StrCat("worker ", name, " has no agent"));
      continue;
    }
    const bool lost = agent->state == AgentState::kLost;
    if (worker.info.kind == DeviceKind::kCuda && !lost &&
        !devices.insert(absl::StrCat(agent->node, " ", worker.info.device)).second) {
      wrong->push_back(absl::StrCat(worker.info.device, " of ", agent->node, " has two workers"));
    }
    if (!worker.assignment.has_value()) continue;
    const AssignmentRef& held = *worker.assignment;
    if (lost) wrong->push_back(absl::StrCat("lost worker ", name, " holds ", held.job_id));
    const JobMachine* job = coordinator.FindJob(held.job_id);
    if (job == nullptr || job->epoch() != held.epoch) {
      wrong->push_back(absl::StrCat("worker ", name, " holds a stale assignment of ", held.job_id));
    } else if (held.rank >= 0 &&
               (job->ranks()[held.rank].worker != name ||
                job->ranks()[held.rank].trainer != RankSlot::Trainer::kLaunched)) {
      wrong->push_back(absl::StrCat("worker ", name, " holds rank ", held.rank, " of ", held.job_id,
                                    ", which is not there"));
    } else if (held.rank < 0 && job->ended()) {
      wrong->push_back(absl::StrCat("spare ", name, " is held by ended ", held.job_id));
    }
  }
}

void CheckJob(const Coordinator& coordinator, const JobMachine& job,
              std::vector<std::string>* wrong) {
  const auto bad = [&](const std::string& what) {
    wrong->push_back(absl::StrCat(job.job_id(), " (", JobStateName(job.state()), "): ", what));
  };
  const int64_t round = coordinator.rendezvous().epoch(job.job_id());
  const bool open = IsActive(job.state()) && !job.aborted();
  if (open && round != job.epoch()) bad(absl::StrCat("its rendezvous has epoch ", round));
  if (!open && round != 0) bad("its rendezvous is still open");
  if (IsActive(job.state()) && static_cast<int>(job.ranks().size()) != job.world_size()) {
    bad("it runs without all ranks");
  }
  if (job.state() == JobState::kQueued && job.epoch() != 0) bad("it waits and has an epoch");
  if (job.state() == JobState::kFailed && !job.cause().has_value()) bad("it has no cause");
  if (job.ended() && job.reason().empty() && job.state() != JobState::kCompleted) {
    bad("it ended without a reason");
  }
  for (size_t rank = 0; rank < job.ranks().size(); ++rank) {
    const RankSlot& slot = job.ranks()[rank];
    if (slot.trainer != RankSlot::Trainer::kLaunched) continue;
    const Worker* worker = coordinator.membership().FindWorker(slot.worker);
    const AssignmentRef held{slot.worker, job.job_id(), job.epoch(), static_cast<int>(rank)};
    if (worker == nullptr || worker->assignment != held) {
      bad(absl::StrCat("rank ", rank, "'s worker ", slot.worker, " does not hold it"));
    }
  }
  if (open) {  // gang or nothing
    for (size_t rank = 0; rank < job.ranks().size(); ++rank) {
      const RankSlot& slot = job.ranks()[rank];
      if (slot.trainer != RankSlot::Trainer::kLaunched && !slot.done.has_value()) {
        bad(absl::StrCat("it goes on without rank ", rank));
      }
    }
  }
  for (const std::string& name : job.spares()) {
    if (job.ended()) break;
    const Worker* worker = coordinator.membership().FindWorker(name);
    const AssignmentRef held{name, job.job_id(), job.epoch(), -1};
    if (worker == nullptr || worker->assignment != held) {
      bad(absl::StrCat("its spare ", name, " is not held"));
    }
  }
  const DirectiveLog& log = job.directives();
  if (log.applied() > log.last()) bad("more directives applied than given");
  int64_t number = 0;
  for (const Directive& directive : log.After(0)) {
    if (directive.number != ++number) bad("its directives have a gap");
  }
  int64_t index = 0, iteration = -1;
  for (const auto& entry : job.history().steps().entries()) {
    if (entry.index <= index) bad("step indexes do not grow");
    if (entry.value.step.iteration <= iteration) bad("an iteration appears twice");
    index = entry.index;
    iteration = entry.value.step.iteration;
  }
}

// What is counted as it changes, counted again.
void CheckSupply(const Membership& members, std::vector<std::string>* wrong) {
  std::map<DeviceKind, WorkerSupply> supply;
  for (const auto& [name, worker] : members.workers()) {
    WorkerSupply& count = supply[worker.info.kind];
    const AgentState state = members.FindAgent(worker.incarnation)->state;
    if (state == AgentState::kLost) continue;
    if (worker.draining) {
      ++count.num_draining;
    } else if (state != AgentState::kAlive) {
      ++count.num_unheard;
    } else {
      ++count.num_usable;
      if (!worker.assignment.has_value()) ++count.num_idle;
    }
  }
  for (const auto& [kind, counted] : members.supply()) {
    const WorkerSupply& real = supply[kind];
    if (counted.num_idle != real.num_idle || counted.num_usable != real.num_usable ||
        counted.num_draining != real.num_draining || counted.num_unheard != real.num_unheard) {
      wrong->push_back(absl::StrCat("the supply of ", DeviceKindName(kind), " workers is ",
                                    real.num_idle, " idle of ", real.num_usable, ", ",
                                    real.num_draining, " draining, ", real.num_unheard,
                                    " unheard; it was counted otherwise"));
    }
  }
}

void CheckBounds(const Coordinator& coordinator, std::vector<std::string>* wrong) {
  const CoordinatorOptions& options = coordinator.options();
  const auto bound = [&](const char* what, size_t size, size_t limit) {
    if (size > limit) wrong->push_back(absl::StrCat(size, " ", what, "; limit ", limit));
  };
  size_t num_queued = 0;
  for (const auto& [sequence, job] : coordinator.jobs()) {
    num_queued += job->state() == JobState::kQueued ? 1 : 0;
    const JobHistory& history = job->history();
    bound("steps", history.steps().size(), history.steps().capacity());
    bound("events", history.events().size(), history.events().capacity());
    bound("evaluations", history.evaluations().size(), history.evaluations().capacity());
    bound("checkpoints", history.checkpoints().size(), history.checkpoints().capacity());
    bound("directives wait", job->directives().last() - job->directives().applied(),
          DirectiveLog::kMaxPending);
    const KvStore* store = coordinator.rendezvous().FindStore(job->job_id());
    if (store == nullptr) continue;
    bound("keys", store->num_keys(), options.rendezvous.max_keys);
    bound("waiting calls", store->num_waiters(), options.rendezvous.max_waiters);
  }
  bound("jobs", coordinator.jobs().size(), options.max_jobs);
  bound("waiting jobs", num_queued, options.max_waiting_jobs);
  bound("workers", coordinator.membership().workers().size(), options.membership.max_workers);
  bound("agents", coordinator.membership().agents().size(), options.membership.max_agents);
}

}  // namespace

std::vector<std::string> CheckInvariants(const Coordinator& coordinator) {
  std::vector<std::string> wrong;
  CheckWorkers(coordinator, &wrong);
  CheckSupply(coordinator.membership(), &wrong);
  CheckBounds(coordinator, &wrong);
  for (const auto& [sequence, job] : coordinator.jobs()) CheckJob(coordinator, *job, &wrong);
  return wrong;
}

std::vector<std::string> CheckInvariants(const Coordinator& coordinator, const JobMachine& job) {
  std::vector<std::string> wrong;
  CheckJob(coordinator, job, &wrong);
  return wrong;
}

std::vector<std::string> InvariantChecker::Check(const Coordinator& coordinator) {
  std::vector<std::string> wrong = CheckInvariants(coordinator);
  CompareAgents(coordinator.membership(), &wrong);
  for (const auto& [sequence, job] : coordinator.jobs()) Compare(*job, &wrong);
  return wrong;
}

void InvariantChecker::CompareAgents(const Membership& members, std::vector<std::string>* wrong) {
  std::erase_if(agents_,
                [&](const auto& seen) { return members.FindAgent(seen.first) == nullptr; });
  for (const auto& [incarnation, agent] : members.agents()) {
    SeenAgent& seen = agents_[incarnation];
    const bool lost = agent.state == AgentState::kLost;
    if (seen.lost && !lost) {
      wrong->push_back(absl::StrCat("agent on ", agent.node, " was lost and is not"));
    }
    if (agent.reports_through < seen.reports_through) {
      wrong->push_back(absl::StrCat("reports of the agent on ", agent.node, " went back from ",
                                    seen.reports_through, " to ", agent.reports_through));
    }
    seen = {lost, agent.reports_through};
  }
}

std::vector<std::string> InvariantChecker::Check(const Coordinator& coordinator,
                                                 const JobMachine& job) {
  std::vector<std::string> wrong = CheckInvariants(coordinator, job);
  Compare(job, &wrong);
  return wrong;
}

void InvariantChecker::Compare(const JobMachine& job, std::vector<std::string>* wrong) {
  Seen now{.state = job.state(),
           .version = job.version(),
           .epoch = job.epoch(),
           .applied = job.directives().applied(),
           .directives = job.directives().After(0),
           .unique_id = job.unique_id(),
           .aborted = job.aborted(),
           .exit_code = job.exit_code(),
           .reason = job.reason(),
           .released = job.released()};
  if (job.cause().has_value() && !job.cause()->symptom) now.cause = job.cause()->text;
  Seen& before = seen_[job.job_id()];
  const auto bad = [&](const char* what) {
    wrong->push_back(absl::StrCat(job.job_id(), ": ", what));
  };
  if (IsEnded(before.state) && (now.state != before.state || now.reason != before.reason ||
                                now.exit_code != before.exit_code)) {
    bad("it changed after its end");
  }
  if (now.version < before.version) bad("its version went back");
  if (now.state != before.state && now.version == before.version) bad("state without version");
  if (now.epoch < before.epoch) bad("its epoch went back");
  const size_t common = std::min(now.directives.size(), before.directives.size());
  if (common < before.directives.size()) bad("directives went away");
  if (!std::equal(now.directives.begin(), now.directives.begin() + common,
                  before.directives.begin())) {
    bad("a directive has changed");
  }
  for (const RankSlot& slot : job.ranks()) now.workers.push_back(slot.worker);
  if (now.epoch == before.epoch && !before.workers.empty()) {
    if (now.workers != before.workers) bad("a rank has another worker in the same epoch");
    if (!before.unique_id.empty() && now.unique_id != before.unique_id) bad("another unique ID");
    if (before.aborted && !now.aborted) bad("an aborted epoch goes on");
  }
  if (now.applied < before.applied) bad("applied directives went back");
  if (!before.cause.empty() && now.cause != before.cause) bad("its first cause was replaced");
  if (before.released && !now.released) bad("it holds workers again");
  before = std::move(now);
}

}  // namespace muster
