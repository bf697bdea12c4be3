// Which jobs start next: all of a job's workers or none. Higher priority first, then first in,
// first out, for each device kind apart. A job that could start once others end holds back those
// behind it, so that it is not starved by smaller ones; a job that is larger than the cluster holds
// back nobody. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/core/types.h"

namespace muster {

struct QueuedJob {
  std::string job_id;
  DeviceKind kind = DeviceKind::kCpu;
  int num_workers = 1;  // ranks and spares
  int64_t priority = 0;
  int64_t sequence = 0;  // of submission; unique
};

struct WorkerSupply {
  int num_idle = 0;
  int num_usable = 0;  // idle or busy; alive and not draining
};

struct AdmissionDecision {
  std::string job_id;
  bool start = false;
  std::string reason;  // "have 1 of 2 cpu workers; waiting for 1 more"
};

// In the order in which they were considered.
std::vector<AdmissionDecision> DecideAdmission(std::vector<QueuedJob> jobs,
                                               std::map<DeviceKind, WorkerSupply> supply);

}  // namespace muster
