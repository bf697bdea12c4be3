#include "worker/snapshot/copy_pace.h"

namespace muster {

void CopyPace::Begin() { began_ = clock_.Steady(); }

void CopyPace::Pause() {
  if (share_ >= 1) return;
  const absl::Duration worked = clock_.Steady() - began_;
  const absl::Duration until = clock_.Steady() + worked * (1 / share_ - 1);
  const MutexLock lock(&mu_);
  while (!hurry_) {
    const absl::Duration left = until - clock_.Steady();
    if (left <= absl::ZeroDuration()) return;
    hurried_.WaitFor(&mu_, left);
  }
}

void CopyPace::Hurry() {
  const MutexLock lock(&mu_);
  hurry_ = true;
  hurried_.NotifyAll();
}

void CopyPace::Relax() {
  const MutexLock lock(&mu_);
  hurry_ = false;
}

}  // namespace muster
