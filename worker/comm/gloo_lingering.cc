#include "worker/comm/gloo_lingering.h"

#include <atomic>
#include <cstdlib>

#include "absl/time/clock.h"
#include "worker/comm/gloo_group.h"

namespace muster {
namespace {

std::atomic<int> num_lingering{0};

void WaitAtExit() {
  for (int i = 0; i < 200 && num_lingering > 0; ++i) absl::SleepFor(absl::Milliseconds(5));
}

}  // namespace

LingeringGlooGroup::LingeringGlooGroup() {
  static const int registered = std::atexit(WaitAtExit);
  (void)registered;
  ++num_lingering;
}

LingeringGlooGroup::~LingeringGlooGroup() { --num_lingering; }

int NumLingeringGlooGroups() { return num_lingering; }

}  // namespace muster
