// Why a job fails: the causes of those of its incidents that belong together, oldest first. They do
// as long as the restart budget counts them (recovery.restart_window_s). A job that ends for good
// says what began it, not what happened last; a failure that it recovered from long before is none
// of that. Pure.
//
// Invariants: an incident has one cause; it is replaced only while it is a symptom. The first cause
// changes only when an incident begins that is a window away from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/job_types.h"

namespace muster {

class CauseChain {
 public:
  explicit CauseChain(absl::Duration window) : window_(window) {}

  // An incident begins with it.
  void Begin(FailureCause cause, absl::Time now);
  // What else was found out about the newest incident. True: that is its cause from now on.
  bool Improve(const FailureCause& cause);
  // Nothing better than the symptom came: it is the cause.
  void Settle();

  bool empty() const { return !first_.has_value(); }
  const std::optional<FailureCause>& first() const { return first_; }
  const FailureCause& newest() const;  // of the newest incident; not empty
  // Those behind the first, the newest of them last.
  const std::vector<FailureCause>& later() const { return later_; }
  // "<first>; 2 attempts followed, the last of which failed: <newest>". `restarts`: of the job so
  // far. Not empty.
  std::string Text(int restarts) const;

  void Restore(FailureCause first, std::vector<FailureCause> later);

 private:
  FailureCause& Newest() { return later_.empty() ? *first_ : later_.back(); }

  const absl::Duration window_;
  std::optional<FailureCause> first_;
  std::vector<FailureCause> later_;  // bounded: where there is no room the one before the last goes
};

}  // namespace muster
