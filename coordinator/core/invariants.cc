#include "coordinator/core/invariants.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/recovery/elastic_size.h"

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
    if (job == nullptr) {
      wrong->push_back(
          absl::StrCat("worker ", name, " holds an assignment of unknown ", held.job_id));
      continue;
    }
    const bool of_rank = held.epoch == job->epoch() && held.rank >= 0 &&
                         held.rank < static_cast<int>(job->ranks().size());
    const ExtraSlot* extra = of_rank ? nullptr : job->FindExtra(name);
    const bool known =
        of_rank ? job->ranks()[held.rank].worker == name && job->ranks()[held.rank].held
                : extra != nullptr && extra->epoch == held.epoch && extra->rank == held.rank;
    if (!known) {
      wrong->push_back(absl::StrCat("worker ", name, " holds rank ", held.rank, " of ", held.job_id,
                                    ", epoch ", held.epoch, ", which is not there"));
    }
  }
}

// The workers that a job holds: each once, known to be held, and by a trainer once it has ended.
void CheckHeld(const Coordinator& coordinator, const JobMachine& job,
               std::vector<std::string>* wrong) {
  const auto bad = [&](const std::string& what) {
    wrong->push_back(absl::StrCat(job.job_id(), " (", JobStateName(job.state()), "): ", what));
  };
  std::set<std::string> workers;
  int num_launched = 0;
  for (const JobMachine::Held& held : job.HeldWorkers()) {
    const AssignmentRef& ref = held.assignment;
    if (!workers.insert(ref.worker).second) bad(absl::StrCat("it holds ", ref.worker, " twice"));
    const Worker* worker = coordinator.membership().FindWorker(ref.worker);
    if (worker == nullptr || worker->assignment != ref) {
      bad(absl::StrCat("rank ", ref.rank, "'s worker ", ref.worker, " does not hold it"));
    }
    const bool launched = held.slot->trainer == RankSlot::Trainer::kLaunched;
    num_launched += launched;
    if (job.ended() && !launched) bad(absl::StrCat("it has ended and keeps ", ref.worker));
    if (held.slot->lost) bad(absl::StrCat("it holds lost ", ref.worker));
  }
  if (num_launched != job.num_launched()) bad("its trainers were counted otherwise");
  if (static_cast<int>(workers.size()) != job.num_held()) bad("its workers were counted otherwise");
  for (const RankSlot& slot : job.ranks()) {
    if (slot.trainer == RankSlot::Trainer::kLaunched && !slot.held) {
      bad(absl::StrCat("the trainer on ", slot.worker, " is nobody's"));
    }
  }
  int next_helper = job.world_size();
  for (const ExtraSlot& extra : job.extras()) {
    const bool of_epoch = extra.epoch == job.epoch();
    if (!extra.slot.held) bad(absl::StrCat(extra.slot.worker, " is listed and not held"));
    if (extra.role == ExtraSlot::Role::kSpare && (extra.rank != -1 || !of_epoch)) {
      bad(absl::StrCat("spare ", extra.slot.worker, " is of another epoch"));
    }
    if (extra.role != ExtraSlot::Role::kHelper) continue;
    if (!of_epoch || extra.rank < next_helper) bad("its helpers are not numbered in order");
    next_helper = extra.rank + 1;
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
  const int64_t of_replica = RanksOfReplica(job.spec());
  if (IsActive(job.state()) &&
      (job.data_parallel_size() < 1 ||
       static_cast<int64_t>(job.ranks().size()) != job.data_parallel_size() * of_replica ||
       static_cast<int64_t>(job.ranks().size()) > job.spec().resources.world_size)) {
    bad(absl::StrCat("it runs with ", job.ranks().size(), " ranks"));
  }
  CheckHeld(coordinator, job, wrong);
  if (job.state() == JobState::kQueued && job.epoch() != 0) bad("it waits and has an epoch");
  if (job.state() == JobState::kFailed && !job.cause().has_value()) bad("it has no cause");
  if (job.ended() && job.reason().empty() && job.state() != JobState::kCompleted) {
    bad("it ended without a reason");
  }
  if (open) {  // gang or nothing
    for (size_t rank = 0; rank < job.ranks().size(); ++rank) {
      const RankSlot& slot = job.ranks()[rank];
      if (slot.trainer != RankSlot::Trainer::kLaunched && !slot.done.has_value()) {
        bad(absl::StrCat("it goes on without rank ", rank));
      }
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
    if (!worker.hold.quarantined.empty()) {
      ++count.num_quarantined;
    } else if (worker.hold.draining) {
      ++count.num_draining;
    } else if (worker.hold.cordoned) {
      ++count.num_cordoned;
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
        counted.num_draining != real.num_draining || counted.num_cordoned != real.num_cordoned ||
        counted.num_quarantined != real.num_quarantined ||
        counted.num_unheard != real.num_unheard) {
      wrong->push_back(absl::StrCat("the supply of ", DeviceKindName(kind), " workers is ",
                                    real.num_idle, " idle of ", real.num_usable, ", ",
                                    real.num_draining, " draining, ", real.num_cordoned,
                                    " cordoned, ", real.num_quarantined, " quarantined, ",
                                    real.num_unheard, " unheard; it was counted otherwise"));
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
           .iteration = job.iteration(),
           .incident = job.incident().number,
           .restarts = job.restarts(),
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
  if (!before.cause.empty() && now.incident == before.incident && now.cause != before.cause) {
    bad("its first cause was replaced");
  }
  if (now.incident < before.incident) bad("its incidents went back");
  if (now.iteration < before.iteration) bad("its iteration went back");
  if (now.restarts < before.restarts) bad("its restarts went back");
  if (before.released && !now.released) bad("it holds workers again");
  before = std::move(now);
}

}  // namespace muster
