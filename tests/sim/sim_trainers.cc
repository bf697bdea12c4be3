#include "tests/sim/sim_trainers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/spec/spec_json.h"

namespace muster {
namespace {

constexpr int kMaxKeys = 8;  // ranks of a world that exchange keys when it forms

}  // namespace

// ---- processes

int64_t SimTrainers::Start(const SimRun& run) {
  const int64_t pid = next_pid_++;
  if (!on_worker_.emplace(run.worker, pid).second) {
    sim_->Wrong(absl::StrCat(run.worker, " has two trainers at once"));
  }
  trainers_[pid].run = run;
  on_node_[run.node].insert(pid);
  sim_->At(sim_->Between(absl::Milliseconds(1), absl::Milliseconds(30)), [=, this] {
    if (Find(pid) == nullptr) return;
    if (!calm_ && sim_->Chance(launch_failures_)) {
      hit_workers_.insert(run.worker);
      return Exit(pid, {.launch_error = "no memory"});
    }
    agents_.started(run, pid);
    sim_->At(sim_->Between(absl::Milliseconds(20), absl::Milliseconds(400)),
             [=, this] { Say(pid, HelloMessage{.pid = pid}); });
  });
  return pid;
}

SimTrainers::Trainer* SimTrainers::Find(int64_t pid) {
  const auto found = trainers_.find(pid);
  return found == trainers_.end() ? nullptr : &found->second;
}

void SimTrainers::Say(int64_t pid, TrainerToAgent message) {
  if (const Trainer* trainer = Find(pid)) agents_.said(trainer->run, message);
}

void SimTrainers::Exit(int64_t pid, const SimExit& exit) {
  const auto found = trainers_.find(pid);
  if (found == trainers_.end()) return;
  const Trainer trainer = std::move(found->second);
  trainers_.erase(found);
  on_node_[trainer.run.node].erase(pid);
  on_worker_.erase(trainer.run.worker);
  if (World* world = trainer.world; world != nullptr && world->pids[trainer.rank] == pid) {
    world->pids[trainer.rank] = 0;
    world->num_training -= trainer.training;
    if (!trainer.done && !world->yielded) {
      BreakStep(*world);
      world->over = true;
      FailOthers(*world);
    }
  }
  if (!trainer.left) agents_.exited(trainer.run, exit);
}

void SimTrainers::End(int64_t pid, absl::Duration grace) {
  Trainer* trainer = Find(pid);
  if (trainer == nullptr) return;
  // Its control socket is closed: it leaves on its own, or is killed after the grace.
  const bool obeys = sim_->Chance(0.8);
  if (trainer->ending && grace > absl::ZeroDuration()) return;
  trainer->ending = true;
  const absl::Duration leaves = sim_->Between(absl::Milliseconds(1), absl::Seconds(1));
  sim_->At(obeys ? std::min(grace, leaves) : grace,
           [=, this] { Exit(pid, obeys ? SimExit{.exit_code = 0} : SimExit{.signal = 9}); });
}

void SimTrainers::AgentDied(int node, const std::string& memories) {
  auto memory = memories_.lower_bound(memories);
  while (memory != memories_.end() && absl::StartsWith(memory->first, memories)) {
    memory = memories_.erase(memory);
  }
  for (const int64_t pid : std::set<int64_t>(on_node_[node])) {
    Trainer& trainer = *Find(pid);
    trainer.left = true;  // nobody waits for it
    if (trainer.world != nullptr) trainer.world->faulted.insert(trainer.rank);
    Exit(pid, {.signal = 9});
  }
}

int64_t SimTrainers::PickRunning() {
  if (trainers_.empty()) return 0;
  // By number, not by a walk: there may be thousands.
  auto it = trainers_.lower_bound(1 + sim_->Pick(static_cast<int>(next_pid_)));
  return it == trainers_.end() ? trainers_.begin()->first : it->first;
}

void SimTrainers::Kill(int64_t pid, int signal) {
  Trainer* trainer = Find(pid);
  if (trainer == nullptr) return;
  if (trainer->world != nullptr) {
    trainer->world->faulted.insert(trainer->rank);
  } else {
    hit_workers_.insert(trainer->run.worker);
  }
  Exit(pid, {.signal = signal});
}

void SimTrainers::Freeze(int64_t pid, absl::Duration duration) {
  Trainer* trainer = Find(pid);
  if (trainer == nullptr || trainer->world == nullptr) return;
  trainer->world->faulted.insert(trainer->rank);
  absl::Duration& until = trainer->world->paused_until;
  until = std::max(until, sim_->steady() + duration);
  trainer->frozen_until = std::max(trainer->frozen_until, sim_->steady() + duration);
}

const char* SimTrainers::ProcessState(int64_t pid) const {
  const auto found = trainers_.find(pid);
  if (found == trainers_.end()) return "";
  return sim_->steady() < found->second.frozen_until ? "T" : "S";
}

// ---- what they are told

void SimTrainers::Send(int64_t pid, const AgentToTrainer& message) {
  Trainer* trainer = Find(pid);
  if (trainer == nullptr) return;
  if (const auto* assign = std::get_if<AssignMessage>(&message)) {
    Join(pid, *trainer, *assign);
  } else if (const auto* directive = std::get_if<DirectiveMessage>(&message)) {
    if (trainer->world != nullptr && trainer->world->epoch == directive->epoch) {
      OnDirective(*trainer, directive->directive);
    }
  } else if (const auto* id = std::get_if<UniqueIdMessage>(&message)) {
    if (trainer->world != nullptr && trainer->world->epoch == id->epoch) OnUniqueId(pid, *trainer);
  } else if (const auto* abort = std::get_if<AbortMessage>(&message)) {
    if (trainer->world != nullptr && trainer->world->epoch == abort->epoch) {
      BreakStep(*trainer->world);
      trainer->world->over = true;
      trainer->failed = true;
    }
  } else if (const auto* probe = std::get_if<ProbeMessage>(&message)) {
    OnProbe(pid, *probe);
  } else if (const auto* reply = std::get_if<StoreReplyMessage>(&message)) {
    OnStoreReply(pid, *trainer, *reply);
  }
}

SimTrainers::World* SimTrainers::FindWorld(const std::string& job_id, int64_t epoch) {
  const auto found = worlds_.find({job_id, epoch});
  return found == worlds_.end() ? nullptr : found->second.get();
}

void SimTrainers::SayPhase(int64_t pid, int64_t epoch, const std::string& phase) {
  if (Trainer* trainer = Find(pid)) trainer->phase = phase;
  Say(pid, PhaseMessage{epoch, phase, ""});
}

// Its control thread answers, unless the whole process stands still.
void SimTrainers::OnProbe(int64_t pid, const ProbeMessage& probe) {
  const Trainer& trainer = *Find(pid);
  if (sim_->steady() < trainer.frozen_until) return;
  ProbeReplyMessage reply{.epoch = probe.epoch, .request = probe.request, .phase = trainer.phase};
  if (const World* world = trainer.world; world != nullptr && world->restored) {
    reply.iteration = world->iteration;
    OpArrival op{.group = "world", .sequence = world->iteration + 1, .operation = "all_reduce"};
    op.done = world->paused_until <= sim_->steady();
    for (int rank = 0; rank < world->world_size; ++rank) op.ranks.push_back(rank);
    reply.ops.push_back(std::move(op));
  }
  Say(pid, std::move(reply));
}

// What was the world's is its own from now on.
void SimTrainers::Leave(int64_t pid, Trainer& trainer) {
  World* world = std::exchange(trainer.world, nullptr);
  if (world == nullptr) return;
  if (world->pids[trainer.rank] == pid) {
    BreakStep(*world);
    world->over = true;
    world->pids[trainer.rank] = 0;
    world->num_training -= trainer.training;
  }
  trainer.training = trainer.done = trainer.failed = trainer.ready = false;
  trainer.ahead.clear();
  trainer.waits_for = trainer.expects = 0;
}

void SimTrainers::BecomeSpare(int64_t pid, Trainer& trainer, const AssignMessage& assign) {
  trainer.rank = -1;
  SayPhase(pid, assign.epoch, "loading");
  sim_->At(sim_->Between(absl::Milliseconds(10), absl::Milliseconds(300)), [=, this] {
    const Trainer* later = Find(pid);
    if (later != nullptr && later->world == nullptr) SayPhase(pid, assign.epoch, "spare");
  });
}

void SimTrainers::Join(int64_t pid, Trainer& trainer, const AssignMessage& assign) {
  if (trainer.world != nullptr && trainer.world->job_id == assign.job_id &&
      trainer.world->epoch >= assign.epoch) {
    sim_->Wrong(absl::StrCat(trainer.run.worker, " was given epoch ", assign.epoch, " of ",
                             assign.job_id, " in epoch ", trainer.world->epoch));
  }
  Leave(pid, trainer);
  if (assign.rank < 0) return BecomeSpare(pid, trainer, assign);
  auto& world = worlds_[{assign.job_id, assign.epoch}];
  if (world == nullptr) {
    const JobSpec spec = ParseJobSpec(assign.spec_json).spec;
    world = std::make_unique<World>();
    world->job_id = assign.job_id;
    world->epoch = assign.epoch;
    world->world_size = assign.world_size;
    world->num_helpers = assign.num_helpers;
    world->train_iters = *spec.training.train_iters;
    world->ledger_through = assign.ledger_through;
    world->sharded = spec.parallel.use_distributed_optimizer;
    world->saves = spec.checkpoint.save.has_value();
    world->snapshot_interval = spec.recovery.snapshot_interval;
    world->applied = assign.directives_through;
    world->pids.resize(assign.world_size + assign.num_helpers);
    world->buddies.resize(assign.world_size + assign.num_helpers, -1);
  }
  int64_t& place = world->pids.at(assign.rank);
  if (place != 0) {
    sim_->Wrong(absl::StrCat("rank ", assign.rank, " of ", assign.job_id, " epoch ", assign.epoch,
                             " runs twice: on ", Find(place)->run.worker, " and on ",
                             trainer.run.worker));
  }
  place = pid;
  world->buddies[assign.rank] = assign.buddy;
  trainer.world = world.get();
  trainer.rank = assign.rank;
  trainer.through = assign.directives_through;
  trainer.memory = assign.snapshot_memory;
  SayPhase(pid, assign.epoch, assign.rank < assign.world_size ? "forming" : "helping");
  if (assign.rank == 0) {
    sim_->At(sim_->Between(absl::Milliseconds(1), absl::Milliseconds(100)), [=, this] {
      Say(pid, PublishUniqueIdMessage{assign.epoch, "1d"});
    });
  }
}

void SimTrainers::OnUniqueId(int64_t pid, Trainer& trainer) {
  World& world = *trainer.world;
  if (world.over || trainer.ready || trainer.expects != 0) return;
  if (trainer.rank >= kMaxKeys || world.pids.size() == 1) return GetReady(pid, trainer);
  trainer.expects = trainer.next_request++;
  Say(pid, StoreRequestMessage{.request = trainer.expects,
                               .epoch = world.epoch,
                               .op = StoreRequestMessage::Op::kSet,
                               .key = absl::StrCat("group/", trainer.rank),
                               .value = "00"});
}

void SimTrainers::OnStoreReply(int64_t pid, Trainer& trainer, const StoreReplyMessage& reply) {
  if (trainer.world == nullptr) return;
  World& world = *trainer.world;
  if (world.over || trainer.failed || trainer.ready) return;
  if (reply.request != trainer.expects) return;  // asked in an older epoch
  if (!reply.ok) {
    trainer.failed = true;
    world.over = true;
    Say(pid, FailedMessage{world.epoch, absl::StrCat("rendezvous: ", reply.error), true});
    return FailOthers(world);
  }
  const int num_keys = std::min(kMaxKeys, static_cast<int>(world.pids.size()));
  if (trainer.waits_for == 0) {
    trainer.waits_for = trainer.expects = trainer.next_request++;
    Say(pid, StoreRequestMessage{.request = trainer.waits_for,
                                 .epoch = world.epoch,
                                 .op = StoreRequestMessage::Op::kWaitPrefix,
                                 .key = "group/",
                                 .count = num_keys,
                                 .limit_ms = 600'000});
    return;
  }
  if (static_cast<int>(reply.entries.size()) != num_keys) {
    sim_->Wrong(
        absl::StrCat(world.job_id, ": a rank got ", reply.entries.size(), " keys of ", num_keys));
  }
  GetReady(pid, trainer);
}

void SimTrainers::OnDirective(Trainer& trainer, const Directive& directive) {
  World& world = *trainer.world;
  const auto [known, is_new] = world.kinds.emplace(directive.number, directive.kind);
  if (!is_new && known->second != directive.kind) {
    sim_->Wrong(absl::StrCat("directive ", directive.number, " of ", world.job_id,
                             " has changed its kind"));
  }
  world.newest_directive = std::max(world.newest_directive, directive.number);
  if (directive.number > trainer.through) trainer.ahead.insert(directive.number);
  while (trainer.ahead.erase(trainer.through + 1) > 0) ++trainer.through;
}

}  // namespace muster
