// SimCluster's trainers: launched, stepped together, killed.
#include <algorithm>
#include <utility>

#include "tests/sim/sim_parts.h"

namespace muster {

// ---- trainers

SimCluster::World& SimCluster::WorldOf(const std::string& job_id, int64_t epoch) {
  auto& world = worlds_[{job_id, epoch}];
  if (world == nullptr) world = std::make_unique<World>();
  return *world;
}

void SimCluster::Launch(int i, const LaunchMessage& launch) {
  Agent& agent = *agents_[i];
  World& world = WorldOf(launch.job_id, launch.epoch);
  if (world.world_size == 0) {
    world.world_size = launch.world_size;
    world.train_iters = static_cast<int>(*ParseJobSpec(launch.spec_json).spec.training.train_iters);
    world.applied = launch.directives_through;
    At(absl::Milliseconds(100),
       [this, job = launch.job_id, epoch = launch.epoch] { StepWorld(job, epoch); });
  }
  for (const LaunchMessage::Assignment& assignment : launch.assignments) {
    const AssignmentRef from{assignment.worker, launch.job_id, launch.epoch, assignment.rank};
    if (!agent.seen.insert(Key(from)).second) continue;  // delivered before
    if (agent.trainers.contains(assignment.worker)) {
      wrong_.push_back(absl::StrCat(assignment.worker, " was given ", launch.job_id,
                                    " while it runs ",
                                    agent.trainers[assignment.worker].assignment.job_id));
      return;
    }
    agent.trainers[assignment.worker] = {.assignment = from};
    world.place[assignment.rank] = {i, assignment.worker};
    if (Chance(0.01) && !calm_) {
      world.faulted.insert(assignment.rank);
      agent.trainers.erase(assignment.worker);
      Report(i, from, ExitedReport{.launch_error = "no memory"});
      continue;
    }
    Report(i, from, PhaseMessage{launch.epoch, "loading", ""});
    if (assignment.rank == 0) Report(i, from, PublishUniqueIdMessage{launch.epoch, "id"});
  }
}

void SimCluster::KillTrainer(int i, const std::string& worker, int signal) {
  Agent& agent = *agents_[i];
  const auto found = agent.trainers.find(worker);
  if (found == agent.trainers.end()) return;
  const AssignmentRef from = found->second.assignment;
  agent.trainers.erase(found);
  Report(i, from, ExitedReport{.signal = signal});
  agent.past.push_back(from);
}

void SimCluster::StepWorld(const std::string& job_id, int64_t epoch) {
  World& world = WorldOf(job_id, epoch);
  std::vector<std::pair<int, Trainer*>> here;  // agent, trainer
  for (const auto& [rank, place] : world.place) {
    Agent& agent = *agents_[place.first];
    const auto found = agent.trainers.find(place.second);
    if (found == agent.trainers.end() || found->second.assignment.job_id != job_id ||
        found->second.assignment.epoch != epoch) {
      continue;
    }
    here.emplace_back(place.first, &found->second);
  }
  const bool some_have_died = here.size() < world.place.size();
  if (world.over || (here.empty() && !world.place.empty())) return;
  const bool all_train =
      static_cast<int>(here.size()) == world.world_size &&
      std::all_of(here.begin(), here.end(), [](const auto& h) { return h.second->training; });
  if (some_have_died) {  // the collectives of the others fail
    for (auto& [i, trainer] : here) {
      if (trainer->failed || trainer->done || !trainer->training) continue;
      trainer->failed = true;
      Report(i, trainer->assignment, FailedMessage{epoch, "all-reduce: connection closed", true});
    }
  } else if (all_train) {
    ++world.iteration;
    // The agreement: what every rank holds without a gap is applied at this step.
    int64_t held = INT64_MAX;
    for (int rank = 0; rank < world.world_size; ++rank) {
      int64_t through = world.applied;
      while (world.directives[rank].contains(through + 1)) ++through;
      held = std::min(held, through);
    }
    bool stop = world.iteration >= world.train_iters;
    for (; world.applied < held; ++world.applied) {
      const Directive::Kind kind = world.kinds.at(world.applied + 1);
      stop |= kind == Directive::Kind::kStop || kind == Directive::Kind::kCheckpointAndStop;
    }
    const auto& [reporter, last] = here.back();
    StepMessage step;
    step.iteration = world.iteration;
    step.consumed_samples = world.iteration;
    step.lm_loss = 1.0;
    step.applied_directive = world.applied;
    Report(reporter, last->assignment, step);
    if (stop) {
      world.over = true;
      for (auto& [i, trainer] : here) {
        trainer->done = true;
        Report(i, trainer->assignment, DoneMessage{epoch, 0, "stopped or trained"});
      }
      return;
    }
  }
  At(absl::Milliseconds(50 + Pick(300)), [=, this] { StepWorld(job_id, epoch); });
}

}  // namespace muster
