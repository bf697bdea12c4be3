#include "worker/comm/long_wait.h"

#include <algorithm>

namespace muster {
namespace {

// One thread issues a rank's operations, so that no group needs to be told.
thread_local absl::Duration long_wait = absl::ZeroDuration();

}  // namespace

LongWait::LongWait(absl::Duration limit) : before_(long_wait) {
  long_wait = std::max(long_wait, limit);
}

LongWait::~LongWait() { long_wait = before_; }

absl::Duration LongWait::LimitOf(absl::Duration group_limit) {
  return std::max(group_limit, long_wait);
}

}  // namespace muster
