// Time as a value that can be replaced: RealClock in daemons, FakeClock in tests. Thread-safe.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/runtime/mutex.h"

namespace muster {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for people and for records.
  virtual absl::Time Now() = 0;
  // Never goes back; its zero is arbitrary. For limits and intervals.
  virtual absl::Duration Steady() = 0;
};

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  absl::Duration Steady() override;
};

// Wall and steady time move together, only when told to.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000))
      : start_(start), now_(start) {}
  absl::Time Now() override {
    MutexLock lock(&mu_);
    return now_;
  }
  absl::Duration Steady() override {
    MutexLock lock(&mu_);
    return now_ - start_;
  }
  void Advance(absl::Duration by) {
    MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  const absl::Time start_;
  Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
