#include "coordinator/core/invariants.h"

#include <set>

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

}  // namespace

std::vector<std::string> CheckInvariants(const Coordinator& coordinator) {
  std::vector<std::string> wrong;
  CheckWorkers(coordinator, &wrong);
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
  for (const auto& [sequence, job] : coordinator.jobs()) Compare(*job, &wrong);
  return wrong;
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
           .last_directive = job.directives().last(),
           .applied = job.directives().applied(),
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
  if (now.last_directive < before.last_directive) bad("directives went away");
  if (now.applied < before.applied) bad("applied directives went back");
  if (!before.cause.empty() && now.cause != before.cause) bad("its first cause was replaced");
  if (before.released && !now.released) bad("it holds workers again");
  before = now;
}

}  // namespace muster
