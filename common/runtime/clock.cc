#include "common/runtime/clock.h"

#include <chrono>

namespace muster {

absl::Duration RealClock::Steady() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace muster
