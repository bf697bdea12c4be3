// Coordinator's part that turns what jobs want into messages to agents.
#include <map>
#include <set>
#include <utility>

#include "coordinator/core/coordinator.h"

namespace muster {
namespace {

LaunchMessage::Assignment AssignmentFor(const RankSlot& slot, int rank) {
  return {.worker = slot.worker,
          .rank = rank,
          .host_address = slot.host_address,
          .device = slot.device,
          .num_threads = slot.num_threads,
          .buddy = slot.buddy};
}

LaunchMessage LaunchFor(const JobMachine& job) {
  return {.job_id = job.job_id(),
          .epoch = job.epoch(),
          .spec_json = job.launch_spec_json(),
          .world_size = job.world_size(),
          .directives_through = job.directives_through(),
          .num_helpers = job.num_helpers(),
          .ledger_through = job.iteration(),
          .examine_json = job.examine_json()};
}

bool HasTrainer(const RankSlot& slot) { return slot.trainer == RankSlot::Trainer::kLaunched; }

}  // namespace

void Coordinator::Resync(const Agent& agent, std::vector<Action>* actions) {
  WelcomeMessage welcome{.reports_through = agent.reports_through};
  std::set<std::string> jobs;
  for (const std::string& name : agent.workers) {
    const auto& assignment = membership_.FindWorker(name)->assignment;
    if (!assignment.has_value()) continue;
    welcome.running.push_back(*assignment);
    jobs.insert(assignment->job_id);
  }
  const std::vector<AssignmentRef> running = welcome.running;
  actions->emplace_back(SendToAgent{agent.stream, std::move(welcome)});
  const auto send = [&](AgentMessage message) {
    actions->emplace_back(SendToAgent{agent.stream, std::move(message)});
  };
  for (const std::string& job_id : jobs) {
    const JobMachine& job = *FindJob(job_id);
    LaunchMessage launch = LaunchFor(job);
    std::vector<StopTrainerMessage> stops;
    for (const AssignmentRef& held : running) {
      if (held.job_id != job_id) continue;
      const ExtraSlot* extra = job.FindExtra(held.worker);
      const RankSlot& slot = extra != nullptr ? extra->slot : job.ranks()[held.rank];
      if (!HasTrainer(slot)) continue;
      const bool leaves = slot.condemned || held.epoch != job.epoch();
      if (job.ended() || leaves) {
        stops.push_back({held.worker, job_id, held.epoch,
                         leaves ? absl::ZeroDuration() : job.stop_grace(), job.reason()});
      } else {
        launch.assignments.push_back(AssignmentFor(slot, held.rank));
      }
    }
    if (job.aborted() && job.state() != JobState::kCompleted && job.state() != JobState::kExited) {
      send(AbortBroadcast{job_id, job.epoch(), job.reason()});
    } else if (!job.ended() && !launch.assignments.empty()) {
      send(std::move(launch));
      if (!job.unique_id().empty()) send(UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()});
      // Those before were applied, and ranks apply only what all of them hold.
      for (const Directive& directive : job.directives().After(job.directives().applied())) {
        send(DirectiveBroadcast{job_id, job.epoch(), directive});
      }
    }
    for (StopTrainerMessage& stop : stops) send(std::move(stop));
  }
}

void Coordinator::Apply(JobMachine& job, const JobEffects& effects, std::vector<Action>* actions) {
  Touch(job);
  if (!effects.empty()) {
    changed_.insert(job.job_id());
    decided_ = true;
  }
  const std::string& job_id = job.job_id();
  for (const JobEffect& effect : effects) {
    if (std::holds_alternative<LaunchRanks>(effect)) {
      rendezvous_.Begin(job_id, job.epoch(), actions);
      SendLaunches(job, actions);
    } else if (const auto* spare = std::get_if<LaunchSpare>(&effect)) {
      const ExtraSlot* extra = job.FindExtra(spare->worker);
      if (extra != nullptr) SendLaunch(job, *extra, actions);
    } else if (const auto* one = std::get_if<StopOne>(&effect)) {
      Send(one->incarnation,
           StopTrainerMessage{one->worker, job_id, one->epoch, absl::ZeroDuration(), one->reason},
           actions);
    } else if (std::holds_alternative<PublishUniqueId>(effect)) {
      Broadcast(job, UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()}, actions);
    } else if (const auto* directive = std::get_if<PublishDirective>(&effect)) {
      Broadcast(job, DirectiveBroadcast{job_id, job.epoch(), directive->directive}, actions);
    } else if (const auto* abort = std::get_if<AbortEpoch>(&effect)) {
      Broadcast(job, AbortBroadcast{job_id, job.epoch(), abort->reason}, actions);
    } else if (std::holds_alternative<StopRanks>(effect)) {
      SendStops(job, actions);
    } else if (const auto* probe = std::get_if<ProbeRanks>(&effect)) {
      Broadcast(job, ProbeOrder{job_id, job.epoch(), probe->request}, actions);
    } else if (const auto* over = std::get_if<EndRendezvous>(&effect)) {
      rendezvous_.End(job_id, over->reason, actions);
    } else if (const auto* release = std::get_if<ReleaseWorker>(&effect)) {
      membership_.Release({release->worker, job_id, release->epoch, release->rank});
    }
  }
}

void Coordinator::SendLaunches(const JobMachine& job, std::vector<Action>* actions) {
  std::map<std::string, LaunchMessage> by_agent;
  std::set<std::string>& agents = agents_of_job_[job.identity().sequence];
  for (const JobMachine::Held& held : job.HeldWorkers()) {
    if (!HasTrainer(*held.slot) || held.assignment.epoch != job.epoch()) continue;
    const std::string& incarnation = held.slot->incarnation;
    auto launch = by_agent.find(incarnation);
    if (launch == by_agent.end()) launch = by_agent.emplace(incarnation, LaunchFor(job)).first;
    launch->second.assignments.push_back(AssignmentFor(*held.slot, held.assignment.rank));
    agents.insert(incarnation);
  }
  for (auto& [incarnation, launch] : by_agent) Send(incarnation, std::move(launch), actions);
}

void Coordinator::SendLaunch(const JobMachine& job, const ExtraSlot& extra,
                             std::vector<Action>* actions) {
  LaunchMessage launch = LaunchFor(job);
  launch.assignments.push_back(AssignmentFor(extra.slot, extra.rank));
  agents_of_job_[job.identity().sequence].insert(extra.slot.incarnation);
  Send(extra.slot.incarnation, std::move(launch), actions);
}

void Coordinator::SendStops(const JobMachine& job, std::vector<Action>* actions) {
  for (const JobMachine::Held& held : job.HeldWorkers()) {
    if (!HasTrainer(*held.slot)) continue;
    Send(held.slot->incarnation,
         StopTrainerMessage{held.slot->worker, job.job_id(), held.assignment.epoch,
                            job.stop_grace(), job.reason()},
         actions);
  }
}

// Its trainers have ended everywhere: nothing of it need be kept.
void Coordinator::ForgetEverywhere(const JobMachine& job, std::vector<Action>* actions) {
  const auto agents = agents_of_job_.find(job.identity().sequence);
  if (agents == agents_of_job_.end()) return;
  for (const std::string& incarnation : agents->second) {
    Send(incarnation, ForgetJobMessage{job.job_id()}, actions);
  }
  agents_of_job_.erase(agents);
}

void Coordinator::Broadcast(const JobMachine& job, const AgentMessage& message,
                            std::vector<Action>* actions) {
  std::set<std::string> agents;
  for (const RankSlot& slot : job.ranks()) {
    if (HasTrainer(slot)) agents.insert(slot.incarnation);
  }
  for (const ExtraSlot& extra : job.extras()) {
    if (HasTrainer(extra.slot) && extra.epoch == job.epoch()) {
      agents.insert(extra.slot.incarnation);
    }
  }
  for (const std::string& incarnation : agents) Send(incarnation, message, actions);
}

void Coordinator::Send(const std::string& incarnation, AgentMessage message,
                       std::vector<Action>* actions) {
  const Agent* agent = membership_.FindAgent(incarnation);
  // Without a stream it gets all that counts when it is welcomed again.
  if (agent == nullptr || agent->stream == 0) return;
  actions->emplace_back(SendToAgent{agent->stream, std::move(message)});
}

}  // namespace muster
