// A cluster of real processes whose parts can be killed, stopped and started again at will, with
// the real trainer. Times at which something goes on or is started again are kept here; Advance()
// does what is due.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/integration/chaos/fault_schedule.h"
#include "tests/integration/cluster.h"

namespace muster {

class ChaosCluster {
 public:
  // Nodes are named "a", "b", ... with so many workers each.
  explicit ChaosCluster(const std::vector<int>& slots_of_node);
  ~ChaosCluster();

  Cluster& cluster() { return cluster_; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int num_workers() const;

  // ---- the present
  static std::string NodeName(int node) { return std::string(1, static_cast<char>('a' + node)); }
  Process& agent(int node) { return cluster_.agent(nodes_[node].process); }
  // Trainers that live or are stopped, in the order of their ids.
  std::vector<pid_t> Trainers() { return cluster_.TrainerPids(); }
  std::vector<pid_t> TrainersOf(int node);
  // That of a rank, by what `muster workers` says of its worker; -1: none. Only on nodes with one
  // worker each.
  pid_t TrainerOfRank(int rank);
  int NodeOfRank(int rank);

  // ---- what is done to it
  void Inject(const Fault& fault);
  void KillAgent(int node);  // stays away until StartAgent
  void KillNode(int node);   // with its trainers, the same instant
  void StartAgent(int node);
  void KillCoordinator();  // stays away until StartCoordinator
  void StartCoordinator();
  bool coordinator_away() const { return coordinator_away_; }

  // Does what is due now; whether anything is still to come.
  bool Advance();
  // What is away or stopped is brought back at once.
  void Heal();
  // Everything that was done, with times, for the report of a failure.
  const std::string& history() const { return history_; }

 private:
  struct Node {
    size_t process;  // index of its newest agent in cluster_
    int slots = 1;
    bool away = false;
    std::unique_ptr<Process> drain;  // the newest command, until it was undone
    bool undoing = false;
  };
  struct Due {
    absl::Time at;
    enum class What { kContinue, kStartAgent, kStartCoordinator, kUndrain } what;
    pid_t pid = -1;
    int node = 0;
  };
  void Do(const Due& due);
  void Stop(pid_t pid, absl::Duration lasts);
  // By commands that are not waited for.
  void StartDrain(int node, bool undo);
  void Undrain(int node);
  void Note(const std::string& text);

  const absl::Time start_;
  Cluster cluster_;
  std::vector<Node> nodes_;
  size_t num_agents_started_ = 0;
  bool coordinator_away_ = false;
  std::vector<Due> due_;
  std::string history_;
};

}  // namespace muster
