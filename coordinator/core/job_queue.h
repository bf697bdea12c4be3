// Which jobs start next: all of a job's workers or none. Higher priority first, then first in,
// first out, for each device kind apart. A job that could start once others end (or once workers
// that cannot be heard now come back) holds back those behind it, so that it is not starved by
// smaller ones; a job that is larger than the cluster holds back nobody. Pure.
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
  int num_usable = 0;  // idle or busy; alive and not held back
  // Held back from new ranks, not lost.
  int num_draining = 0, num_cordoned = 0, num_quarantined = 0;
  int num_unheard = 0;  // joining or suspect, not held back: may be usable soon
  int num_held() const { return num_draining + num_cordoned + num_quarantined; }
};

// A job that holds workers.
struct WorkerHolder {
  std::string job_id;
  DeviceKind kind = DeviceKind::kCpu;
  int num_workers = 0;
  bool ending = false;  // it has ended, and its trainers have not yet
};

struct AdmissionInput {
  std::vector<QueuedJob> jobs;
  std::map<DeviceKind, WorkerSupply> supply;
  std::vector<WorkerHolder> holders;
  std::string paused;  // why nothing is admitted now; empty: it is
};

struct AdmissionDecision {
  std::string job_id;
  bool start = false;
  // "have 1 of 4 cpu workers; waiting for 3 more (3 are busy: job-1 holds 2, job-2 holds 1)"
  std::string reason;
};

// In the order in which they were considered.
std::vector<AdmissionDecision> DecideAdmission(AdmissionInput input);

}  // namespace muster
