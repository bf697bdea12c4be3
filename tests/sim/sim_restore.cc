// SimTrainers' part that carries state from one epoch into the next, as trainers do: each member
// offers what it holds, all go on from what DecideRestore says.
#include <algorithm>

#include "tests/sim/sim_trainers.h"

namespace muster {
namespace {

constexpr int64_t kStepsKept = 64;  // reports that a trainer can send again
constexpr size_t kGenerationsKept = 2;

std::string LayoutOf(bool sharded, int world_size) {
  return sharded ? absl::StrCat("sharded over ", world_size) : "whole";
}

}  // namespace

// The same numbers whenever the step is run.
StepMessage SimTrainers::StepOf(const World& world, int64_t iteration) const {
  StepMessage step;
  step.epoch = world.epoch;
  step.iteration = iteration;
  step.consumed_samples = iteration;
  step.lm_loss = 1.0 + 1.0 / static_cast<double>(iteration);
  step.grad_norm = 1.0 / static_cast<double>(iteration);
  step.applied_directive = world.applied;
  step.elapsed_ms = absl::ToDoubleMilliseconds(world.last_gap);
  return step;
}

void SimTrainers::TakeSnapshots(World& world) {
  if (world.snapshot_interval <= 0 || world.iteration % world.snapshot_interval != 0) return;
  const int64_t num_pieces = world.sharded ? world.world_size : 1;
  const auto keep = [&](int64_t pid, HeldState::Kind kind, int64_t piece) {
    const Trainer* trainer = Find(pid);
    if (trainer == nullptr || trainer->memory.empty()) return;
    Memory& memory = memories_[trainer->memory];
    if (memory.job_id != world.job_id) memory = {.job_id = world.job_id};
    memory.held[world.iteration].push_back({.kind = kind,
                                            .iteration = world.iteration,
                                            .epoch = world.state_epoch,
                                            .layout = LayoutOf(world.sharded, world.world_size),
                                            .pieces = {piece},
                                            .num_pieces = num_pieces});
    while (memory.held.size() > kGenerationsKept) memory.held.erase(memory.held.begin());
  };
  // A step that is run again is written again.
  for (const int64_t pid : world.pids) {
    const Trainer* trainer = Find(pid);
    const auto memory = trainer == nullptr ? memories_.end() : memories_.find(trainer->memory);
    if (memory != memories_.end()) memory->second.held.erase(world.iteration);
  }
  for (int rank = 0; rank < world.world_size; ++rank) {
    keep(world.pids[rank], HeldState::Kind::kOwnSnapshot, world.sharded ? rank : 0);
  }
  for (int rank = 0; rank < world.world_size; ++rank) {
    if (world.buddies[rank] < 0) continue;
    keep(world.pids[world.buddies[rank]], HeldState::Kind::kBuddySnapshot,
         world.sharded ? rank : 0);
  }
}

// The epoch ends in the midst of a step: it may be prepared, its agreement may have returned on
// some, and some of those may have committed and even reported it.
void SimTrainers::BreakStep(World& world) {
  if (world.broken || !world.restored) return;
  world.broken = true;
  const int64_t step = world.iteration + 1;
  const bool open = world.stepping && !world.over && !world.yielded && step <= world.train_iters &&
                    sim_->Chance(0.5);
  const bool returned = open && sim_->Chance(0.5);
  for (int rank = 0; rank < static_cast<int>(world.pids.size()); ++rank) {
    Trainer* trainer = Find(world.pids[rank]);
    if (trainer == nullptr) continue;
    trainer->live = world.iteration;
    trainer->live_epoch = world.state_epoch;
    trainer->prepared = false;
    if (rank >= world.world_size) trainer->live = -1;
    if (!open || rank >= world.world_size) continue;
    trainer->prepared = true;
    trainer->prepared_epoch = world.epoch;
    if (!returned || sim_->Chance(0.5)) continue;
    trainer->agreed = step;
    trainer->agreed_epoch = world.epoch;
    if (sim_->Chance(0.5)) continue;
    trainer->live = step;
    trainer->live_epoch = world.epoch;
    trainer->prepared = false;
    if (rank == world.world_size - 1) Say(world.pids[rank], StepOf(world, step));
  }
}

void SimTrainers::GetReady(int64_t pid, Trainer& trainer) {
  World& world = *trainer.world;
  trainer.ready = true;
  if (trainer.rank < world.world_size) {
    SayPhase(pid, world.epoch, world.epoch > 1 ? "restoring" : "loading");
  }
  if (++world.num_ready == static_cast<int>(world.pids.size())) Restore(world);
}

MemberOffer SimTrainers::OfferOf(const World& world, int rank) const {
  const Trainer& trainer = trainers_.at(world.pids[rank]);
  MemberOffer offer;
  if (rank < world.world_size) {
    offer.layout = LayoutOf(world.sharded, world.world_size);
    offer.needs = {world.sharded ? rank : 0};
  }
  if (trainer.live >= 0) {
    offer.held.push_back({.kind = HeldState::Kind::kLive,
                          .iteration = trainer.live,
                          .epoch = trainer.live_epoch,
                          .layout = trainer.layout,
                          .pieces = {trainer.piece},
                          .num_pieces = trainer.num_pieces});
  }
  if (const auto memory = memories_.find(trainer.memory);
      memory != memories_.end() && memory->second.job_id == world.job_id) {
    for (const auto& [iteration, held] : memory->second.held) {
      offer.held.insert(offer.held.end(), held.begin(), held.end());
    }
  }
  offer.prepared = trainer.prepared;
  offer.prepared_epoch = trainer.prepared_epoch;
  if (trainer.agreed > 0) {
    offer.agreed = AgreementVector{};
    offer.agreed_iteration = trainer.agreed;
    offer.agreed_epoch = trainer.agreed_epoch;
  }
  const auto saved = saved_.find(world.job_id);
  if (saved != saved_.end()) offer.checkpoint = saved->second;
  return offer;
}

void SimTrainers::Restore(World& world) {
  std::vector<MemberOffer> offers;
  for (int rank = 0; rank < static_cast<int>(world.pids.size()); ++rank) {
    if (world.pids[rank] == 0) return;  // it has died since: the epoch is over
    offers.push_back(OfferOf(world, rank));
  }
  const absl::StatusOr<RestoreDecision> decided = DecideRestore(offers);
  if (!decided.ok()) {
    return sim_->Wrong(absl::StrCat(world.job_id, ": ", decided.status().message()));
  }
  const RestoreDecision& decision = *decided;
  static constexpr const char* kSources[] = {"beginning", "checkpoint", "snapshot", "live"};
  world.restored = true;
  world.iteration = decision.iteration;
  world.state_epoch = decision.epoch;
  sim_->Trace(world.job_id, " epoch ", world.epoch, ": ", decision.reason);
  for (int rank = 0; rank < static_cast<int>(world.pids.size()); ++rank) {
    Trainer& trainer = *Find(world.pids[rank]);
    trainer.layout = LayoutOf(world.sharded, world.world_size);
    trainer.piece = world.sharded ? rank : 0;
    trainer.num_pieces = world.sharded ? world.world_size : 1;
    trainer.live = decision.iteration;
    trainer.live_epoch = decision.epoch;
    trainer.prepared = false;
    if (decision.finish_with.has_value()) {
      trainer.agreed = decision.iteration;
      trainer.agreed_epoch = decision.epoch;
    }
  }
  const std::vector<int64_t> pids = world.pids;
  if (world.epoch > 1) {
    Say(pids[0], RestoredMessage{.epoch = world.epoch,
                                 .iteration = world.iteration,
                                 .source = kSources[static_cast<int>(decision.source)]});
    // The reporting rank sends what it still has and the ledger lacks: of a state that it was given
    // the last step, since that is a part of it.
    const int reporter = world.world_size - 1;
    const std::optional<int>& kept = decision.members[reporter].keeps;
    const bool survivor =
        kept.has_value() && offers[reporter].held[*kept].kind == HeldState::Kind::kLive;
    int64_t from = std::max(world.ledger_through + 1, world.iteration - kStepsKept + 1);
    if (!survivor) from = std::max(from, world.iteration);
    for (int64_t step = std::max<int64_t>(1, from); step <= world.iteration; ++step) {
      Say(pids[reporter], StepOf(world, step));
    }
  }
  for (int rank = 0; rank < static_cast<int>(pids.size()); ++rank) {
    const int64_t pid = pids[rank];
    if (rank >= world.world_size) {
      if (Trainer* helper = Find(pid)) helper->done = true;
      Say(pid, DoneMessage{world.epoch, 0, "its state is given"});
      continue;
    }
    sim_->At(sim_->Between(absl::ZeroDuration(), absl::Milliseconds(50)), [=, this, &world] {
      Trainer* later = Find(pid);
      if (later != nullptr && later->world == &world) StartTraining(pid, *later);
    });
  }
}

}  // namespace muster
