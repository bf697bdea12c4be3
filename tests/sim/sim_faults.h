// What goes wrong in a simulation, by weights, and which nodes it has hit.
#pragma once

#include <map>
#include <string>

#include "tests/sim/sim_agents.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_people.h"

namespace muster {

// How often each fault is chosen, against the others; 0: never.
struct FaultWeights {
  int break_stream = 10, crash_agent = 4, terminate_agent = 1, freeze_agent = 3;
  int kill_trainer = 5, freeze_trainer = 2;
  int cut_one = 5, cut_all = 1;
  int crash_coordinator = 4, freeze_coordinator = 2, lose_power = 1;
  int disk_full = 2, disk_low = 1, spill_full = 1;
  int jump_clock = 2, say_stale = 3, flood = 1;
  int launch_fails = 2;  // of 1,000 starts of a trainer
};

struct FaultOptions {
  FaultWeights weights;
  absl::Duration pause = absl::Seconds(4);  // between faults, on average
  absl::Duration longest_cut = absl::Seconds(45);
  absl::Duration longest_away = absl::Seconds(40);  // of the coordinator
};

class SimFaults {
 public:
  struct Cluster {
    SimNetwork* network = nullptr;
    SimTrainers* trainers = nullptr;
    SimAgents* agents = nullptr;
    SimCoordinatorHost* host = nullptr;
    SimJournal* journal = nullptr;
    SimPeople* people = nullptr;
    SimChecks* checks = nullptr;
  };
  SimFaults(Sim* sim, const FaultOptions& options) : sim_(sim), options_(options) {}
  void Connect(const Cluster& cluster) { cluster_ = cluster; }

  void Start();
  // Everything is mended, and stays so.
  void End();

  // ---- one fault each
  void CutAll(absl::Duration duration);
  void CrashCoordinator(absl::Duration away);
  void LosePower(absl::Duration away);
  void FillDisk(absl::Duration duration);

  // Whether something has happened to this node shortly before `when`.
  bool Hit(const std::string& node, absl::Duration when) const;
  int count(const std::string& fault) const;
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  void CauseOne();
  void Note(const std::string& fault, int node, absl::Duration lasts = absl::ZeroDuration());
  void BringBack(absl::Duration away);
  void LowDisk(absl::Duration duration);

  Sim* const sim_;
  const FaultOptions options_;
  Cluster cluster_;
  bool over_ = false;
  std::map<std::string, absl::Duration> hit_until_;  // by node
  std::map<std::string, int> counts_;
};

}  // namespace muster
