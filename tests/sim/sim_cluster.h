// SimCluster: the whole control plane in one thread with a made-up clock: the coordinator's core
// and its journal, the agents' cores on N nodes, their trainers, people, and the network between
// them. A seed decides every delay, loss, repetition, crash and request; the same seed gives the
// same run.
//
// A run has a time of faults and then one of calm, in which everything heals and every job must
// end. Invariants are checked after every event (sim_checks.h says how in large clusters).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/sim_agents.h"
#include "tests/sim/sim_checks.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_faults.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_people.h"
#include "tests/sim/sim_trainers.h"

namespace muster {

class SimCluster;

struct SimOptions {
  uint32_t seed = 1;
  bool trace = false;
  int num_nodes = 5;
  int min_slots = 1, max_slots = 2;
  int num_jobs = 6;
  absl::Duration submits = absl::Seconds(40);  // in which the jobs come
  absl::Duration boots = absl::Seconds(3);     // in which the nodes come up
  absl::Duration faulty = absl::Seconds(60);   // how long faults happen
  absl::Duration calm = absl::Seconds(240);    // the time in which all must have ended
  bool meddling = true;                        // people cancel, drain, ask
  absl::Duration shortest_step = absl::Milliseconds(50), longest_step = absl::Milliseconds(350);
  SimPeople::Options people;
  FaultOptions faults;
  // The process dies at the write with this number.
  std::optional<std::pair<int64_t, CrashPoint>> crash_at;
  absl::Duration away_after_crash = absl::Seconds(1);
  // Called at the start: to plan what shall happen.
  std::function<void(SimCluster&)> script;
};

class SimCluster {
 public:
  explicit SimCluster(const SimOptions& options);
  ~SimCluster();

  // What went wrong; empty: nothing.
  std::vector<std::string> Run();

  // What happened, so that a test can see that it was not nothing.
  struct Tally {
    int completed = 0, failed = 0, cancelled = 0, exited = 0, coordinator_lives = 0;
    int crashed_agents = 0, new_incarnations = 0, restarts = 0, broken_streams = 0, repeated = 0,
        refused = 0;
    int64_t actions = 0, steps = 0, writes = 0, batches = 0, stale_reports = 0;
    absl::Duration longest_step_gap;  // between two steps of an epoch
    std::map<std::string, int> faults;
  };
  Tally tally() const { return tally_; }

  Sim& sim() { return sim_; }
  SimFaults& faults() { return faults_; }
  SimNetwork& network() { return network_; }
  SimPeople& people() { return people_; }
  SimTrainers& trainers() { return trainers_; }
  SimAgents& agents() { return agents_; }
  SimCoordinatorHost& host() { return host_; }

 private:
  void Tick();
  void Meddle();
  bool Quiet() const;
  void Judge();
  void JudgeJob(const JobMachine& job);

  const SimOptions options_;
  Sim sim_;
  SimJournal journal_;
  SimNetwork network_;
  SimTrainers trainers_;
  SimAgents agents_;
  SimCoordinatorHost host_;
  SimChecks checks_;
  SimPeople people_;
  SimFaults faults_;
  bool calm_ = false;
  absl::Duration next_look_;
  Tally tally_;
};

}  // namespace muster
