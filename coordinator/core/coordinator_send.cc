// Coordinator's part that turns what jobs want into messages to agents.
#include <utility>

#include "coordinator/core/coordinator.h"

namespace muster {
namespace {

LaunchMessage::Assignment AssignmentFor(const JobMachine& job, int rank) {
  const RankSlot& slot = job.ranks()[rank];
  return {.worker = slot.worker,
          .rank = rank,
          .host_address = slot.host_address,
          .device = slot.device,
          .num_threads = slot.num_threads};
}

LaunchMessage LaunchFor(const JobMachine& job) {
  return {.job_id = job.job_id(),
          .epoch = job.epoch(),
          .spec_json = job.identity().spec_json,
          .world_size = job.world_size(),
          .directives_through = job.directives_through()};
}

bool HasTrainer(const RankSlot& slot) { return slot.trainer == RankSlot::Trainer::kLaunched; }

}  // namespace

void Coordinator::Resync(const Agent& agent, std::vector<Action>* actions) {
  WelcomeMessage welcome{.reports_through = agent.reports_through};
  std::map<std::string, std::vector<int>> ranks_of_job;
  for (const std::string& name : agent.workers) {
    const auto& assignment = membership_.FindWorker(name)->assignment;
    if (!assignment.has_value() || assignment->rank < 0) continue;
    welcome.running.push_back(*assignment);
    ranks_of_job[assignment->job_id].push_back(assignment->rank);
  }
  actions->emplace_back(SendToAgent{agent.stream, std::move(welcome)});
  for (const auto& [job_id, ranks] : ranks_of_job) {
    const JobMachine& job = *FindJob(job_id);
    const auto send = [&](AgentMessage message) {
      actions->emplace_back(SendToAgent{agent.stream, std::move(message)});
    };
    if (job.ended()) {
      if (job.state() == JobState::kFailed || job.state() == JobState::kCancelled) {
        send(AbortBroadcast{job_id, job.epoch(), job.reason()});
      }
      for (const int rank : ranks) {
        send(StopTrainerMessage{job.ranks()[rank].worker, job_id, job.epoch(), job.stop_grace(),
                                job.reason()});
      }
      continue;
    }
    if (job.aborted()) {
      send(AbortBroadcast{job_id, job.epoch(), job.reason()});
      continue;
    }
    LaunchMessage launch = LaunchFor(job);
    for (const int rank : ranks) launch.assignments.push_back(AssignmentFor(job, rank));
    send(std::move(launch));
    if (!job.unique_id().empty()) send(UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()});
    // Those before were applied, and ranks apply only what all of them hold.
    for (const Directive& directive : job.directives().After(job.directives().applied())) {
      send(DirectiveBroadcast{job_id, job.epoch(), directive});
    }
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
    } else if (std::holds_alternative<PublishUniqueId>(effect)) {
      Broadcast(job, UniqueIdBroadcast{job_id, job.epoch(), job.unique_id()}, actions);
    } else if (const auto* directive = std::get_if<PublishDirective>(&effect)) {
      Broadcast(job, DirectiveBroadcast{job_id, job.epoch(), directive->directive}, actions);
    } else if (const auto* abort = std::get_if<AbortEpoch>(&effect)) {
      Broadcast(job, AbortBroadcast{job_id, job.epoch(), abort->reason}, actions);
    } else if (std::holds_alternative<StopRanks>(effect)) {
      SendStops(job, actions);
    } else if (const auto* over = std::get_if<EndRendezvous>(&effect)) {
      rendezvous_.End(job_id, over->reason, actions);
    } else if (const auto* release = std::get_if<ReleaseRank>(&effect)) {
      membership_.Release({job.ranks()[release->rank].worker, job_id, job.epoch(), release->rank});
    } else if (std::holds_alternative<ReleaseSpares>(effect)) {
      for (const std::string& worker : job.spares()) {
        membership_.Release({worker, job_id, job.epoch(), -1});
      }
    }
  }
}

void Coordinator::SendLaunches(const JobMachine& job, std::vector<Action>* actions) {
  std::map<std::string, LaunchMessage> by_agent;
  for (int rank = 0; rank < job.world_size(); ++rank) {
    const std::string& incarnation = job.ranks()[rank].incarnation;
    auto launch = by_agent.find(incarnation);
    if (launch == by_agent.end()) launch = by_agent.emplace(incarnation, LaunchFor(job)).first;
    launch->second.assignments.push_back(AssignmentFor(job, rank));
  }
  for (auto& [incarnation, launch] : by_agent) Send(incarnation, std::move(launch), actions);
}

void Coordinator::SendStops(const JobMachine& job, std::vector<Action>* actions) {
  for (const RankSlot& slot : job.ranks()) {
    if (!HasTrainer(slot)) continue;
    Send(slot.incarnation,
         StopTrainerMessage{slot.worker, job.job_id(), job.epoch(), job.stop_grace(), job.reason()},
         actions);
  }
}

void Coordinator::Broadcast(const JobMachine& job, const AgentMessage& message,
                            std::vector<Action>* actions) {
  std::set<std::string> agents;
  for (const RankSlot& slot : job.ranks()) {
    if (HasTrainer(slot)) agents.insert(slot.incarnation);
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
