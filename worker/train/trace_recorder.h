// Records where the time of a traced step goes on this rank: passes, layers, parts of the step,
// every collective from its issue to its end, and every wait for one. The events lie in an array of
// a fixed size, allocated before the trace begins; what finds it full is counted and left out.
//
// Recording an event takes a clock read and one atomic add for its place, no allocation (a group's
// first operation, which is registered by name, and the numbering of messages excepted). Who does
// not trace has a null pointer where the recorder would be: one branch, no clock read.
// Thread-safe: operations end on the backends' threads, on a GPU layers run backward on autograd's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/runtime/mutex.h"
#include "worker/comm/op_log.h"
#include "worker/train/trace_data.h"

namespace muster {

class TraceRecorder final : public OpObserver {
 public:
  // The calling thread is the one that trains.
  explicit TraceRecorder(int64_t capacity);

  // What the events that follow belong to. By the training thread.
  void SetIteration(int64_t iteration) { iteration_ = iteration; }
  // Until the next one; -1: none.
  void SetPass(int chunk, int microbatch);

  // Returns the event's place, for End; -1 when there is none left.
  int64_t Begin(TraceKind kind, const char* name, int unit = -1);
  void End(int64_t place);

  int64_t OpStarted(const Start& start) override;
  void OpFinished(int64_t op) override;
  void OpWaited(int64_t op, int64_t begin_ns) override;

  // What was recorded so far. Operations that have not ended have no end.
  TraceData Take() const;

 private:
  struct Slot {
    TraceEvent event;
    std::atomic<int64_t> end_ns = 0;
  };
  // (group, peer, channel, is_send): messages between two ranks match in order, channel by channel.
  using Stream = std::tuple<int, int, int, bool>;

  Slot* Claim(TraceKind kind, const char* name);
  int64_t PlaceOf(const Slot* slot) const { return slot == nullptr ? -1 : slot - slots_.get(); }
  int ThisThread();

  const int64_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  const std::thread::id training_thread_;
  std::atomic<int64_t> next_ = 0;  // above capacity_: so many did not fit
  std::atomic<int64_t> iteration_ = -1;
  std::atomic<int> chunk_ = -1, microbatch_ = -1;
  mutable Mutex mu_;
  std::map<const std::vector<int>*, int> group_of_ ABSL_GUARDED_BY(mu_);  // by a log's ranks
  std::vector<TraceGroup> groups_ ABSL_GUARDED_BY(mu_);
  std::map<Stream, int64_t> messages_ ABSL_GUARDED_BY(mu_);  // so far
  std::map<std::thread::id, int> threads_ ABSL_GUARDED_BY(mu_);
};

// An event from its construction to its destruction. `recorder` null: nothing.
class TraceScope {
 public:
  TraceScope(TraceRecorder* recorder, TraceKind kind, const char* name)
      : recorder_(recorder), place_(recorder == nullptr ? -1 : recorder->Begin(kind, name)) {}
  ~TraceScope() {
    if (recorder_ != nullptr) recorder_->End(place_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceRecorder* const recorder_;
  const int64_t place_;
};

// A forward or backward pass of a microbatch.
class TracePass {
 public:
  TracePass(TraceRecorder* recorder, TraceKind kind, int chunk, int microbatch);
  ~TracePass();
  TracePass(const TracePass&) = delete;
  TracePass& operator=(const TracePass&) = delete;

 private:
  TraceRecorder* const recorder_;
  int64_t place_ = -1;
};

}  // namespace muster
