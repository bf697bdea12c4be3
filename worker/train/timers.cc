#include "worker/train/timers.h"

#include "common/base/check.h"

namespace muster {

void Timers::Start(const std::string& name) {
  Timer& timer = timers_[name];
  MUSTER_CHECK_MSG(!timer.running, name + " is already running");
  timer.running = true;
  timer.started = clock_->Steady();
}

void Timers::Stop(const std::string& name) {
  Timer& timer = timers_[name];
  MUSTER_CHECK_MSG(timer.running, name + " is not running");
  timer.running = false;
  timer.total += clock_->Steady() - timer.started;
}

bool Timers::IsRunning(const std::string& name) const {
  auto it = timers_.find(name);
  return it != timers_.end() && it->second.running;
}

absl::Duration Timers::Elapsed(const std::string& name) const {
  auto it = timers_.find(name);
  if (it == timers_.end()) return absl::ZeroDuration();
  return it->second.total +
         (it->second.running ? clock_->Steady() - it->second.started : absl::ZeroDuration());
}

std::map<std::string, double> Timers::TakeMilliseconds() {
  std::map<std::string, double> out;
  const absl::Duration now = clock_->Steady();
  for (auto& [name, timer] : timers_) {
    if (timer.running) {
      timer.total += now - timer.started;
      timer.started = now;
    }
    if (timer.total > absl::ZeroDuration()) out[name] = absl::ToDoubleMilliseconds(timer.total);
    timer.total = absl::ZeroDuration();
  }
  return out;
}

}  // namespace muster
