#include "coordinator/core/job_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

std::vector<AdmissionDecision> DecideAdmission(std::vector<QueuedJob> jobs,
                                               std::map<DeviceKind, WorkerSupply> supply) {
  std::sort(jobs.begin(), jobs.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.sequence < b.sequence;
  });
  std::map<DeviceKind, std::string> held_by;  // the job at the head that waits for this kind
  std::vector<AdmissionDecision> decisions;
  for (const QueuedJob& job : jobs) {
    WorkerSupply& free = supply[job.kind];
    const char* kind = DeviceKindName(job.kind);
    const auto head = held_by.find(job.kind);
    if (head != held_by.end()) {
      decisions.push_back({job.job_id, false,
                           absl::StrCat("needs ", job.num_workers, " ", kind,
                                        " workers; waits behind ", head->second)});
      continue;
    }
    const std::string have = absl::StrCat("have ", std::min(free.num_idle, job.num_workers), " of ",
                                          job.num_workers, " ", kind, " workers");
    if (free.num_idle >= job.num_workers) {
      free.num_idle -= job.num_workers;
      decisions.push_back({job.job_id, true, have});
      continue;
    }
    const int num_busy = free.num_usable - free.num_idle;
    decisions.push_back(
        {job.job_id, false,
         absl::StrCat(have, "; waiting for ", job.num_workers - free.num_idle, " more",
                      num_busy > 0 ? absl::StrCat(" (", num_busy, " are busy)") : "")});
    if (job.num_workers <= free.num_usable) held_by[job.kind] = job.job_id;
  }
  return decisions;
}

}  // namespace muster
