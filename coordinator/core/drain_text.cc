#include "coordinator/core/drain_text.h"

#include "absl/strings/str_cat.h"

namespace muster {

std::string DrainText(const JobMachine& job, const Worker& worker) {
  const auto& held = worker.assignment;
  if (!worker.hold.must_move() || !held.has_value() || held->job_id != job.job_id()) return "";
  const ExtraSlot* extra = job.FindExtra(worker.info.name);
  if (extra != nullptr && extra->role == ExtraSlot::Role::kHelper) {
    return absl::StrCat("gives the state of its rank of ", job.job_id(), " away");
  }
  if (job.ended() || extra != nullptr) {
    return absl::StrCat("its trainer of ", job.job_id(), " is told to end");
  }
  const std::string who = absl::StrCat("rank ", held->rank, " of ", job.job_id());
  if (job.change().has_value()) {
    for (const RankMove& move : job.change()->moves) {
      if (move.from == worker.info.name) return absl::StrCat(who, " moves to ", move.to);
    }
    return absl::StrCat(who, " moves after another change: ", job.change()->reason);
  }
  if (!job.drain_waits().empty()) return absl::StrCat(job.job_id(), ": ", job.drain_waits());
  return absl::StrCat(who, " moves when the job, which is ", JobStateName(job.state()), ", trains");
}

}  // namespace muster
