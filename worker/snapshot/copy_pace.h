// Keeps a copy that runs behind training to a share of one processor's time, until somebody waits
// for it. One thread copies; any thread hurries.
#pragma once

#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"

namespace muster {

class CopyPace {
 public:
  // Copying takes at most `share` of the time that passes; 1: no pauses.
  CopyPace(double share, Clock& clock) : share_(share), clock_(clock) {}

  // Around each piece of work, on the copying thread. Pause sleeps as long as the piece asks for,
  // or until Hurry.
  void Begin();
  void Pause();
  // From now on no pauses, until Relax.
  void Hurry();
  void Relax();

 private:
  const double share_;
  Clock& clock_;
  absl::Duration began_;  // steady
  Mutex mu_;
  CondVar hurried_;
  bool hurry_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace muster
