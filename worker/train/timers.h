// Wall-clock timers of a step, with Megatron's names ("forward-backward", "all-grads-sync",
// "optimizer", "interval-time"). A started timer must be stopped before it is started again. One
// thread.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "worker/train/trace_recorder.h"

namespace muster {

class Timers {
 public:
  explicit Timers(Clock* clock) : clock_(clock) {}

  void Start(const std::string& name);
  void Stop(const std::string& name);
  bool IsRunning(const std::string& name) const;
  // Time since the last Reset, of a running timer too.
  absl::Duration Elapsed(const std::string& name) const;
  // Everything measured since the last call, in ms; running timers go on from zero.
  std::map<std::string, double> TakeMilliseconds();

  // Records the scopes too, from now on; null: not any more.
  void set_trace(TraceRecorder* trace) { trace_ = trace; }

  // Starts in the constructor, stops in the destructor. `name`: a literal.
  class Scope {
   public:
    Scope(Timers& timers, const char* name)
        : timers_(timers), name_(name), traced_(timers.trace_, TraceKind::kPart, name) {
      timers_.Start(name_);
    }
    ~Scope() { timers_.Stop(name_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Timers& timers_;
    const char* const name_;
    const TraceScope traced_;
  };

 private:
  struct Timer {
    absl::Duration total;
    absl::Duration started;
    bool running = false;
  };
  Clock* const clock_;
  TraceRecorder* trace_ = nullptr;
  std::map<std::string, Timer> timers_;
};

}  // namespace muster
