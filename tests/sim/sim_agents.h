// The agents of a simulation: on each node the product's AgentMachine, and around it what
// worker/agent does without threads: it registers, holds the stream, reconnects with back-off,
// starts and ends trainers, asks the rendezvous service and goes on asking while nobody answers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/types.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_trainers.h"

namespace muster {

class SimAgents {
 public:
  struct Watch {  // who checks what agents are told
    // Reports that an agent may forget now.
    std::function<void(const std::vector<TrainerReport>&)> acknowledged;
  };
  struct Tally {
    int crashes = 0, terminations = 0, incarnations = 0, registrations = 0;
  };

  SimAgents(Sim* sim, SimNetwork* network, SimTrainers* trainers);
  ~SimAgents();

  void Add(int num_slots);
  void Connect(Watch watch) { watch_ = std::move(watch); }
  int size() const { return static_cast<int>(agents_.size()); }
  int num_workers() const { return num_workers_; }
  std::string NodeName(int node) const;
  std::string WorkerName(int node, int slot) const;
  int num_slots(int node) const;

  // ---- life and faults
  void Boot(int node);
  void Crash(int node);
  void Terminate(int node);  // SIGTERM; it leaves when its trainers have
  void Freeze(int node, absl::Duration duration);
  void SetSpillFull(int node, bool full);  // its state folder's disk
  bool up(int node) const;
  StreamId stream(int node) const;
  // Its next batch speaks of what is long over.
  void SayStale(int node);

  // ---- events
  void OnMessage(int node, StreamId stream, const AgentMessage& message);
  void OnStreamLost(int node, StreamId stream, const absl::Status& status);
  void OnTrainerStarted(const SimRun& run, int64_t pid);
  void OnTrainerSaid(const SimRun& run, const TrainerToAgent& message);
  void OnTrainerExited(const SimRun& run, const SimExit& exit);
  void OnTrainerGone(const SimRun& run, const SimExit& exit);

  // ---- the judgement
  const std::string& incarnation(int node) const;
  bool AllAcknowledged(int node) const;
  std::vector<AssignmentRef> Running(int node) const;  // ranks are not known here: -1
  const Tally& tally() const { return tally_; }

 private:
  struct Agent;
  struct Machine;
  class Doer;

  // Of a memfd, which ends with its agent.
  static std::string MemoryName(const Agent& agent, int64_t memory);
  void Loop(int node);
  void Retry(int node);
  void Register(int node);
  void Beat(int node, StreamId stream);
  void SetAlarm(int node);
  void Ask(int node, int life, const std::string& worker, int64_t run, const std::string& job_id,
           const StoreRequestMessage& request, absl::Duration deadline);

  Sim* const sim_;
  SimNetwork* const network_;
  SimTrainers* const trainers_;
  Watch watch_;
  std::vector<std::unique_ptr<Agent>> agents_;
  int num_workers_ = 0;
  Tally tally_;
};

}  // namespace muster
