// The common fate of a world and of all groups split from it: the first failure is everybody's
// failure, since a collective that lost a member ends the attempt (and a healthy group left in
// mid-step must be freed too).
// Every thread that waits for an operation waits here, so Fail frees them all: the cause is set and
// the waiters are told under the same mutex, hence no lost wake-up. Torch-free. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"

namespace muster {

class AbortState {
 public:
  // Guards the state of the operations whose waits go through Wait, too.
  Mutex mu;

  // The first cause wins. True for the call that set it.
  bool Fail(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mu, listeners_mu_) {
    {
      MutexLock lock(&mu);
      if (!FailLocked(cause)) return false;
    }
    MutexLock lock(&listeners_mu_);
    for (const auto& [id, listener] : listeners_) listener();
    return true;
  }
  // Tells no listener.
  bool FailLocked(const absl::Status& cause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (!failure_.ok()) return false;
    failure_ = cause;
    for (CondVar* cv : waiting_) cv->NotifyAll();
    return true;
  }

  absl::Status failure() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(&mu);
    return failure_;
  }
  const absl::Status& failure_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return failure_; }

  // Called by the thread in Fail once the failure is set, or here if it is set already; perhaps
  // twice. Must not block, and must not add or remove listeners.
  int64_t AddListener(std::function<void()> listener) ABSL_LOCKS_EXCLUDED(mu, listeners_mu_) {
    MutexLock lock(&listeners_mu_);
    if (!failure().ok()) listener();
    listeners_[++last_listener_] = std::move(listener);
    return last_listener_;
  }
  // It is not called any more once this has returned.
  void RemoveListener(int64_t id) ABSL_LOCKS_EXCLUDED(listeners_mu_) {
    MutexLock lock(&listeners_mu_);
    listeners_.erase(id);
  }

  static absl::Duration SteadyNow() { return RealClock().Steady(); }

  // Blocks until done() (called under mu), the failure, or the deadline (SteadyNow's scale).
  // Whoever makes done() true notifies `cv` under mu. What is done counts as done, also after a
  // failure. Errors: the failure; DEADLINE_EXCEEDED, which is not recorded: the caller knows what
  // to say.
  template <class Done>
  absl::Status Wait(CondVar* cv, absl::Duration deadline, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto place = waiting_.insert(cv);
    absl::Status status;
    while (!done()) {
      if (!failure_.ok()) {
        status = failure_;
        break;
      }
      const absl::Duration left = deadline - SteadyNow();
      if (left <= absl::ZeroDuration()) {
        status = absl::DeadlineExceededError("limit passed");
        break;
      }
      // An infinite or huge limit would overflow the clock's arithmetic.
      cv->WaitFor(&mu, left < absl::Hours(1) ? left : absl::Hours(1));
    }
    waiting_.erase(place);
    return status;
  }

 private:
  absl::Status failure_ ABSL_GUARDED_BY(mu);
  std::multiset<CondVar*> waiting_ ABSL_GUARDED_BY(mu);
  Mutex listeners_mu_;  // taken before mu
  std::map<int64_t, std::function<void()>> listeners_ ABSL_GUARDED_BY(listeners_mu_);
  int64_t last_listener_ ABSL_GUARDED_BY(listeners_mu_) = 0;
};

}  // namespace muster
