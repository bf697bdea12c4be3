// What all parts of a simulation share: a made-up clock with a timeline of actions, one source of
// chance, the list of what went wrong, and the trace. The same seed gives the same run. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace muster {

class Sim {
 public:
  Sim(uint32_t seed, bool trace) : random_(seed), trace_(trace) {}

  // ---- time
  absl::Duration steady() const { return now_; }
  void At(absl::Duration delay, std::function<void()> action) {
    timeline_.push({now_ + delay, next_order_++, std::move(action)});
  }
  // Runs the next action if it is due before `until`; false: there is none.
  bool RunOne(absl::Duration until) {
    if (timeline_.empty() || timeline_.top().time > until) return false;
    // The action is moved out of the queue's top, which is popped at once.
    Timed next = std::move(const_cast<Timed&>(timeline_.top()));
    timeline_.pop();
    now_ = next.time;
    ++num_actions_;
    next.action();
    return true;
  }
  int64_t num_actions() const { return num_actions_; }

  // ---- chance
  bool Chance(double probability) { return random_() < probability * 4294967296.0; }
  int Pick(int below) { return static_cast<int>(random_() % below); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low + (high - low) * (random_() / 4294967296.0);
  }

  // ---- what went wrong
  void Wrong(const std::string& what) {
    if (wrong_.size() < 20) wrong_.push_back(absl::StrCat(absl::FormatDuration(now_), ": ", what));
  }
  bool ok() const { return wrong_.empty(); }
  const std::vector<std::string>& wrong() const { return wrong_; }

  // ---- the trace: MUSTER_SIM_TRACE=1
  bool tracing() const { return trace_; }
  template <typename... Parts>
  void Trace(const Parts&... parts) {
    if (trace_) Print(absl::StrCat(parts...));
  }

 private:
  struct Timed {
    absl::Duration time;
    int64_t order;  // of equal times: first in, first out
    std::function<void()> action;
    bool operator>(const Timed& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  void Print(const std::string& line) const {
    std::fprintf(stderr, "%12.3f  %s\n", absl::ToDoubleSeconds(now_), line.c_str());
  }

  std::mt19937 random_;
  const bool trace_;
  absl::Duration now_;
  std::priority_queue<Timed, std::vector<Timed>, std::greater<>> timeline_;
  int64_t next_order_ = 0, num_actions_ = 0;
  std::vector<std::string> wrong_;
};

}  // namespace muster
