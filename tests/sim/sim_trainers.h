// The trainers of a simulation: processes that an agent starts, feeds and ends, and what those of
// one epoch share: they step together, as their collectives make them, whether or not anybody hears
// of the coordinator. What is left of an epoch (live state, prepared steps, snapshots) is offered
// to the next one, and decided upon by the trainers' own code (common/recovery).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/control/messages.h"
#include "common/recovery/restore_plan.h"
#include "tests/sim/sim_context.h"

namespace muster {

struct SimExit {
  int exit_code = 0, signal = 0;
  std::string launch_error;
};

// One start of a trainer by one life of an agent.
struct SimRun {
  int node = 0, life = 0;
  std::string worker;
  int64_t run = 0;
};

class SimTrainers {
 public:
  struct Agents {
    std::function<void(const SimRun&, int64_t pid)> started;
    std::function<void(const SimRun&, const TrainerToAgent&)> said;
    std::function<void(const SimRun&, const SimExit&)> exited;
  };
  struct World {
    std::string job_id;
    int64_t epoch = 0;
    int world_size = 0, num_helpers = 0;
    int64_t train_iters = 0, ledger_through = 0;
    bool sharded = false, saves = false;
    int64_t snapshot_interval = 0;
    std::vector<int64_t> pids;  // by rank, helpers behind; 0: none has joined
    std::vector<int> buddies;   // by rank
    int num_training = 0, num_ready = 0;
    bool restored = false, yielded = false, broken = false;
    int64_t state_epoch = 0;  // HeldState::epoch of what all hold
    int64_t iteration = 0, applied = 0, newest_directive = 0;
    std::map<int64_t, Directive::Kind> kinds;
    bool over = false, stepping = false, exiting = false;
    absl::Duration last_step, paused_until, last_gap, longest_gap;  // between steps
    std::set<int> faulted;                                          // ranks that a fault has hit
  };

  explicit SimTrainers(Sim* sim) : sim_(sim) {}
  void Connect(Agents agents) { agents_ = std::move(agents); }
  void Calm() { calm_ = true; }
  void set_launch_failures(double chance) { launch_failures_ = chance; }
  void set_step(absl::Duration shortest, absl::Duration longest) {
    shortest_step_ = shortest;
    longest_step_ = longest;
  }

  // ---- by agents
  int64_t Start(const SimRun& run);
  void Send(int64_t pid, const AgentToTrainer& message);
  void Signal(int64_t pid);  // SIGTERM: every rank leaves at the next step
  void End(int64_t pid, absl::Duration grace);
  // `memories`: what the names of its memories begin with.
  void AgentDied(int node, const std::string& memories);
  void FreeMemory(const std::string& name) { memories_.erase(name); }
  // Of /proc/PID/stat.
  const char* ProcessState(int64_t pid) const;

  // ---- by faults
  int64_t PickRunning();  // 0: there is none
  void Kill(int64_t pid, int signal);
  void Freeze(int64_t pid, absl::Duration duration);

  World* FindWorld(const std::string& job_id, int64_t epoch);
  size_t num_running() const { return trainers_.size(); }
  // Iteration of an epoch's trainers on this node; what a heartbeat says.
  struct Progress {
    std::string job_id;
    int64_t epoch = 0, iteration = 0;
  };
  std::vector<Progress> ProgressOn(int node) const;
  const std::map<std::pair<std::string, int64_t>, std::unique_ptr<World>>& worlds() const {
    return worlds_;
  }
  int64_t num_steps() const { return num_steps_; }
  // Whether a trainer of it was killed or could not be started before it had a rank.
  bool WasHit(const std::string& worker) const { return hit_workers_.contains(worker); }

 private:
  struct Trainer {
    SimRun run;
    World* world = nullptr;  // none: it has no assignment yet
    int rank = -1;
    bool training = false, done = false, failed = false, ending = false, left = false;
    int64_t through = 0;       // directives held without a gap
    std::set<int64_t> ahead;   // and those beyond a gap
    int64_t next_request = 1;  // of the store
    int64_t waits_for = 0, expects = 0;
    absl::Duration last_progress, frozen_until;
    bool ready = false;         // it has come to the exchange of offers
    std::string phase, memory;  // memory: AssignMessage::snapshot_memory
    // Its own state, in so far as it is not that of its world.
    int64_t live = -1, live_epoch = 0;  // committed steps; -1: none
    std::string layout;                 // of it
    int64_t piece = 0, num_pieces = 1;
    bool prepared = false;
    int64_t prepared_epoch = 0, agreed = 0, agreed_epoch = 0;
  };
  // Snapshots in an agent's memory, which outlives the trainer.
  struct Memory {
    std::string job_id;
    std::map<int64_t, std::vector<HeldState>> held;  // by iteration; two at most
  };
  Trainer* Find(int64_t pid);
  void Say(int64_t pid, TrainerToAgent message);
  void Join(int64_t pid, Trainer& trainer, const AssignMessage& assign);
  void OnUniqueId(int64_t pid, Trainer& trainer);
  void OnStoreReply(int64_t pid, Trainer& trainer, const StoreReplyMessage& reply);
  void OnDirective(Trainer& trainer, const Directive& directive);
  void SayPhase(int64_t pid, int64_t epoch, const std::string& phase);
  void OnProbe(int64_t pid, const ProbeMessage& probe);
  void Leave(int64_t pid, Trainer& trainer);
  void BecomeSpare(int64_t pid, Trainer& trainer, const AssignMessage& assign);
  // sim_restore.cc
  void GetReady(int64_t pid, Trainer& trainer);
  void Restore(World& world);
  MemberOffer OfferOf(const World& world, int rank) const;
  void BreakStep(World& world);
  void TakeSnapshots(World& world);
  StepMessage StepOf(const World& world, int64_t iteration) const;
  void StartTraining(int64_t pid, Trainer& trainer);
  void StepWorld(World& world);
  void Finish(World& world, int exit_code, const std::string& reason);
  void FailOthers(World& world);
  void Exit(int64_t pid, const SimExit& exit);

  Sim* const sim_;
  Agents agents_;
  bool calm_ = false;
  double launch_failures_ = 0;
  absl::Duration shortest_step_ = absl::Milliseconds(50), longest_step_ = absl::Milliseconds(350);
  std::map<int64_t, Trainer> trainers_;       // by pid
  std::map<int, std::set<int64_t>> on_node_;  // pids
  std::map<std::string, int64_t> on_worker_;  // one device, one trainer
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<World>> worlds_;
  std::set<std::string> hit_workers_;
  std::map<std::string, Memory> memories_;  // by name
  std::map<std::string, int64_t> saved_;    // newest checkpoint by job
  int64_t next_pid_ = 1, num_steps_ = 0;
};

}  // namespace muster
