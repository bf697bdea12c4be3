// What a SimCluster is made of: agents, their trainers, and what the trainers of a job share.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_cluster.h"

namespace muster {

struct SimCluster::Trainer {
  AssignmentRef assignment;
  bool training = false, done = false, failed = false;
};

// One life after the other of an agent process on one node.
struct SimCluster::Agent {
  std::string node;
  int num_slots = 1;
  int life = 0;
  bool up = false;
  absl::Time cut_off_until;       // nothing passes either way
  StreamId stream = 0;            // 0: none
  absl::Time last_up, last_down;  // a stream keeps its order
  int64_t beats = 0, sequence = 0, acknowledged = 0;
  std::map<int64_t, std::vector<TrainerReport>> unacknowledged;
  std::map<std::string, Trainer> trainers;  // by worker
  std::set<std::string> seen;               // assignments of this life
  std::vector<AssignmentRef> past;          // of any life; their trainers have ended
  std::string Incarnation() const { return absl::StrCat("incarnation-", node, "-", life); }
  std::string Worker(int slot) const { return absl::StrCat(node, "/", slot); }
};

// What the trainers of one epoch share: they step together, as their collectives make them.
struct SimCluster::World {
  int world_size = 0, train_iters = 0;
  std::map<int, std::pair<int, std::string>> place;  // rank -> agent, worker
  std::map<int, std::set<int64_t>> directives;       // rank -> numbers received
  std::map<int64_t, Directive::Kind> kinds;
  int64_t iteration = 0, applied = 0;
  bool over = false;
  std::set<int> faulted;  // ranks that a fault of this simulation has hit
};

inline std::string Key(const AssignmentRef& assignment) {
  return absl::StrCat(assignment.worker, " ", assignment.job_id, " ", assignment.epoch);
}

}  // namespace muster
