#include "coordinator/core/job_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

constexpr size_t kMaxHoldersNamed = 4;

std::string Are(int count, absl::string_view what) {
  return absl::StrCat(count, count == 1 ? " is " : " are ", what);
}

// "job-1 holds 2, job-2 holds 1": those with the most first.
std::string NameHolders(const AdmissionInput& input, DeviceKind kind) {
  std::vector<const WorkerHolder*> holders;
  for (const WorkerHolder& holder : input.holders) {
    if (holder.kind == kind && holder.num_workers > 0) holders.push_back(&holder);
  }
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto* a, const auto* b) { return a->num_workers > b->num_workers; });
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(holders.size(), kMaxHoldersNamed); ++i) {
    parts.push_back(absl::StrCat(holders[i]->job_id, " holds ", holders[i]->num_workers,
                                 holders[i]->ending ? " until its trainers have ended" : ""));
  }
  if (holders.size() > kMaxHoldersNamed) {
    parts.push_back(absl::StrCat("and ", holders.size() - kMaxHoldersNamed, " more jobs"));
  }
  return absl::StrJoin(parts, ", ");
}

// What stands in the way, behind "waiting for N more".
std::string Obstacles(const AdmissionInput& input, const QueuedJob& job, const WorkerSupply& free,
                      int num_started) {
  const WorkerSupply supply =
      input.supply.contains(job.kind) ? input.supply.at(job.kind) : WorkerSupply();
  std::vector<std::string> parts;
  const int num_busy = supply.num_usable - supply.num_idle;
  if (num_busy > 0) {
    const std::string holders = NameHolders(input, job.kind);
    parts.push_back(absl::StrCat(Are(num_busy, "busy"), holders.empty() ? "" : ": ", holders));
  }
  if (num_started > 0) parts.push_back(Are(num_started, "given to jobs before it"));
  if (free.num_draining > 0) parts.push_back(Are(free.num_draining, "draining"));
  if (free.num_cordoned > 0) parts.push_back(Are(free.num_cordoned, "cordoned"));
  if (free.num_quarantined > 0) parts.push_back(Are(free.num_quarantined, "quarantined"));
  if (free.num_unheard > 0) parts.push_back(Are(free.num_unheard, "not heard now"));
  std::string text = parts.empty() ? "" : absl::StrCat(" (", absl::StrJoin(parts, "; "), ")");
  const int reachable = free.num_usable + free.num_unheard;
  if (job.num_workers > reachable) {
    absl::StrAppend(&text, "; the cluster has only ", reachable, ": ", job.num_workers - reachable,
                    " must join",
                    free.num_held() == 0                   ? ""
                    : free.num_held() == free.num_draining ? " or be undrained"
                                                           : " or be uncordoned");
  }
  if (supply.num_usable + supply.num_held() + supply.num_unheard == 0) {
    for (const auto& [kind, other] : input.supply) {
      if (kind == job.kind || other.num_usable == 0) continue;
      absl::StrAppend(&text, " (there are ", other.num_usable, " ", DeviceKindName(kind),
                      " workers: resources.device may be wrong)");
    }
  }
  return text;
}

}  // namespace

std::vector<AdmissionDecision> DecideAdmission(AdmissionInput input) {
  std::sort(input.jobs.begin(), input.jobs.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.sequence < b.sequence;
  });
  struct Head {  // the first job of a kind that waits and could start later
    std::string job_id;
    int num_lacking = 0;
  };
  std::map<DeviceKind, WorkerSupply> supply = input.supply;
  std::map<DeviceKind, int> started;
  std::map<DeviceKind, Head> heads;
  std::vector<AdmissionDecision> decisions;
  for (const QueuedJob& job : input.jobs) {
    WorkerSupply& free = supply[job.kind];
    const char* kind = DeviceKindName(job.kind);
    const std::string needs = absl::StrCat("needs ", job.num_workers, " ", kind, " workers");
    if (!input.paused.empty()) {
      decisions.push_back(
          {job.job_id, false, absl::StrCat("no job is started now: ", input.paused, "; ", needs)});
      continue;
    }
    if (const auto head = heads.find(job.kind); head != heads.end()) {
      decisions.push_back({job.job_id, false,
                           absl::StrCat(needs, "; waits behind ", head->second.job_id,
                                        ", which lacks ", head->second.num_lacking)});
      continue;
    }
    const std::string have = absl::StrCat("have ", std::min(free.num_idle, job.num_workers), " of ",
                                          job.num_workers, " ", kind, " workers");
    if (free.num_idle >= job.num_workers) {
      free.num_idle -= job.num_workers;
      started[job.kind] += job.num_workers;
      decisions.push_back({job.job_id, true, have});
      continue;
    }
    const int lacking = job.num_workers - free.num_idle;
    decisions.push_back({job.job_id, false,
                         absl::StrCat(have, "; waiting for ", lacking, " more",
                                      Obstacles(input, job, free, started[job.kind]))});
    if (job.num_workers <= free.num_usable + free.num_unheard) {
      heads[job.kind] = {job.job_id, lacking};
    }
  }
  return decisions;
}

}  // namespace muster
