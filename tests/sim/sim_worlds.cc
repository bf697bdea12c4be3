// SimTrainers' part that trains: the steps of an epoch, its end, and how one's failure reaches the
// others.
#include <algorithm>

#include "tests/sim/sim_trainers.h"

namespace muster {

void SimTrainers::StartTraining(int64_t pid, Trainer& trainer) {
  World& world = *trainer.world;
  if (trainer.training || trainer.failed || world.over) return;
  trainer.training = true;
  ++world.num_training;
  SayPhase(pid, world.epoch, "training");
  if (world.num_training < world.world_size || world.stepping) return;
  world.stepping = true;
  world.last_step = sim_->steady();
  sim_->At(sim_->Between(shortest_step_, longest_step_), [this, &world] { StepWorld(world); });
}

void SimTrainers::StepWorld(World& world) {
  if (world.over) return;
  // All was trained before the recovery already.
  if (world.iteration >= world.train_iters) return Finish(world, 0, "trained");
  if (const absl::Duration rest = world.paused_until - sim_->steady();
      rest > absl::ZeroDuration()) {
    sim_->At(rest, [this, &world] { StepWorld(world); });
    return;
  }
  ++num_steps_;
  ++world.iteration;
  world.last_gap = sim_->steady() - world.last_step;
  world.longest_gap = std::max(world.longest_gap, world.last_gap);
  world.last_step = sim_->steady();
  // The agreement: what every rank holds without a gap is applied at this step.
  int64_t held = world.applied;
  if (world.newest_directive > world.applied) {
    held = INT64_MAX;
    for (int rank = 0; rank < world.world_size; ++rank) {
      held = std::min(held, Find(world.pids[rank])->through);
    }
  }
  world.state_epoch = world.epoch;
  bool stop = world.iteration >= world.train_iters || world.exiting, yields = false;
  const int64_t first = world.pids.front(), last = world.pids[world.world_size - 1];
  for (; world.applied < held; ++world.applied) {
    switch (world.kinds.at(world.applied + 1)) {
      case Directive::Kind::kEvaluate:
        Say(first, PhaseMessage{world.epoch, "evaluating", ""});
        Say(last, EvaluationMessage{world.epoch, world.iteration, "valid", 1.0, 2.7});
        Say(first, PhaseMessage{world.epoch, "training", ""});
        break;
      case Directive::Kind::kCheckpointAndStop:
        stop = true;
        [[fallthrough]];
      case Directive::Kind::kCheckpoint:
        Say(first, PhaseMessage{world.epoch, "saving", ""});
        Say(first,
            CheckpointMessage{
                .epoch = world.epoch, .iteration = world.iteration, .path = "/ckpt", .ok = true});
        if (world.saves) saved_[world.job_id] = world.iteration;
        Say(first, PhaseMessage{world.epoch, "training", ""});
        break;
      case Directive::Kind::kStop:
        stop = true;
        break;
      case Directive::Kind::kReform:
        yields = true;
        break;
      case Directive::Kind::kTrace:              // changes nothing that the coordinator hears of
      case Directive::Kind::kCheckpointAndExit:  // of a step that is held: none is here
        break;
    }
  }
  Say(last, StepOf(world, world.iteration));
  if (stop) return Finish(world, 0, world.exiting ? "signal 15" : "stopped or trained");
  TakeSnapshots(world);
  if (yields) {
    world.yielded = true;
    for (int rank = 0; rank < world.world_size; ++rank) {
      SayPhase(world.pids[rank], world.epoch, "yielded");
    }
    return;
  }
  sim_->At(sim_->Between(shortest_step_, longest_step_), [this, &world] { StepWorld(world); });
}

void SimTrainers::Finish(World& world, int exit_code, const std::string& reason) {
  world.over = true;
  const std::vector<int64_t> pids = world.pids;
  for (const int64_t pid : pids) {
    if (pid == 0) continue;  // a helper that has gone
    Find(pid)->done = true;
    Say(pid, DoneMessage{world.epoch, exit_code, reason});
    if (Find(pid) == nullptr || !sim_->Chance(0.2)) continue;
    sim_->At(sim_->Between(absl::ZeroDuration(), absl::Seconds(1)), [=, this] { Exit(pid, {}); });
  }
}

// The others' collectives fail: at once, or a little later.
void SimTrainers::FailOthers(World& world) {
  for (const int64_t pid : world.pids) {
    if (pid == 0) continue;
    const Trainer& trainer = *Find(pid);
    if (!trainer.training || trainer.done || trainer.failed) continue;
    sim_->At(sim_->Between(absl::Milliseconds(5), absl::Milliseconds(200)), [=, this, &world] {
      Trainer* later = Find(pid);
      if (later == nullptr || later->world != &world || later->failed || later->done ||
          later->ending) {
        return;
      }
      later->failed = true;
      Say(pid, FailedMessage{world.epoch, "all-reduce: connection closed", true});
    });
  }
}

void SimTrainers::Signal(int64_t pid) {
  Trainer* trainer = Find(pid);
  if (trainer == nullptr || trainer->world == nullptr) return;
  trainer->world->exiting = true;  // the agreement carries the wish to every rank
  trainer->world->faulted.insert(trainer->rank);
}

std::vector<SimTrainers::Progress> SimTrainers::ProgressOn(int node) const {
  std::vector<Progress> progress;
  const auto pids = on_node_.find(node);
  if (pids == on_node_.end()) return progress;
  std::set<const World*> seen;
  for (const int64_t pid : pids->second) {
    const World* world = trainers_.at(pid).world;
    if (world == nullptr || world->iteration == 0 || !seen.insert(world).second) continue;
    progress.push_back({world->job_id, world->epoch, world->iteration});
  }
  return progress;
}

}  // namespace muster
