// What /status shows, as plain values: taken from the core at once, so that the page is one moment.
// Bounded whatever the size of cluster and jobs.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/server/html.h"
#include "muster/v1/job.pb.h"

namespace muster {

// Ranks of one job that are in the same phase.
struct PhaseRow {
  std::string phase, ranks;  // "0-4095"
  int num_ranks = 0;
  std::vector<std::string> nodes;  // at most kMaxNodesListed
  int num_nodes = 0;
};
inline constexpr size_t kMaxNodesListed = 8;

struct JobView {
  v1::JobStatus status;          // without results but the newest evaluation and checkpoint
  std::string state;             // "RUNNING"
  std::vector<PhaseRow> phases;  // most ranks first
  std::vector<PlotPoint> losses;
  std::vector<std::string> events;  // newest first
};

// Nodes whose workers are in the same condition.
struct NodeRow {
  std::string condition;  // "alive, busy with job-7"
  std::vector<std::string> nodes;
  int num_nodes = 0, num_workers = 0;
  bool trouble = false;
};

struct StatusView {
  absl::Time now;
  std::string storage_trouble;  // empty: none
  int num_workers = 0, num_idle = 0, num_busy = 0, num_draining = 0, num_cordoned = 0,
      num_quarantined = 0, num_not_alive = 0;
  std::vector<JobView> active, waiting, ended;  // in order of submission; ended: newest first
  int active_left_out = 0, waiting_left_out = 0, ended_left_out = 0;
  std::vector<NodeRow> nodes;
};

// Called on the engine's thread.
StatusView StatusViewOf(const Coordinator& core, absl::Time now);

}  // namespace muster
