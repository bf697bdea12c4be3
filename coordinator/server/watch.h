// Calls that look at one job and may wait for news of it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/server/call_gate.h"

namespace muster {

inline constexpr absl::Duration kMaxWatch = absl::Minutes(1);

// Answers `call` as soon as `has_news(job)` holds or `wait` has passed, after `fill(job)`, whose
// status is the call's. NOT_FOUND when there is no such job (any more). Both run on the engine's
// thread. `fill` of WatchJobAndCore sees what is around the job, too.
inline void WatchJobAndCore(
    CallGate* gate, const std::shared_ptr<UnaryCall>& call, const std::string& job_id,
    absl::Duration wait, std::function<bool(const JobMachine&)> has_news,
    std::function<absl::Status(const JobMachine&, const Coordinator&)> fill) {
  const auto attempt = [=](const Coordinator& core, absl::Time now, bool last) {
    if (call->claimed()) return true;  // the caller has gone
    const JobMachine* job = core.FindJob(job_id);
    if (job == nullptr) {
      call->Answer(absl::NotFoundError(absl::StrCat("job \"", job_id, "\" is not known")));
      return true;
    }
    if (!last && !has_news(*job)) return false;
    if (call->Claim()) call->Finish(ToGrpc(fill(*job, core)));
    return true;
  };
  gate->Watch(call, job_id, std::clamp(wait, absl::ZeroDuration(), kMaxWatch), attempt);
}

inline void WatchJob(CallGate* gate, const std::shared_ptr<UnaryCall>& call,
                     const std::string& job_id, absl::Duration wait,
                     std::function<bool(const JobMachine&)> has_news,
                     std::function<absl::Status(const JobMachine&)> fill) {
  WatchJobAndCore(
      gate, call, job_id, wait, std::move(has_news),
      [fill = std::move(fill)](const JobMachine& job, const Coordinator&) { return fill(job); });
}

inline constexpr int kMaxPage = 1'000;  // entries of one answer
inline size_t PageSize(int32_t limit) {
  return limit <= 0 || limit > kMaxPage ? kMaxPage : static_cast<size_t>(limit);
}

}  // namespace muster
