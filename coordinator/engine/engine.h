// The thread that owns the coordinator's core. Events come in through a bounded queue and are
// handled one after another; a timer ticks; actions go out through the Sink in the order in which
// the core gave them. The queue holds the only lock; callbacks run on the engine's thread, never
// under it, and must not block.
//
// Public methods are thread-safe. A callback that was accepted runs exactly once; when the engine
// stops before its turn, with UNAVAILABLE.
//
// The journal's place (a later issue) is HandleOne(): an event is written before it is acted on.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "coordinator/core/coordinator.h"

namespace muster {

// Carries out what the core wants of the outside. Called on the engine's thread only.
class ActionSink {
 public:
  virtual ~ActionSink() = default;
  virtual void Send(StreamId stream, const AgentMessage& message) = 0;
  virtual void End(StreamId stream, const absl::Status& status) = 0;
  virtual void Answer(const WaitDone& done) = 0;
};

struct EngineOptions {
  CoordinatorOptions core;
  absl::Duration tick = absl::Milliseconds(50);
  size_t max_queue = 100'000;
  size_t max_watches = 20'000;
};

class Engine {
 public:
  // `clock` and `sink` outlive the engine.
  Engine(const EngineOptions& options, Clock* clock, ActionSink* sink);
  ~Engine();  // stops

  // Heartbeats do not queue up. Once a tick, on the engine's thread, `source` appends the newest
  // one of each stream that has had one since its last call; a stream whose heartbeat the core
  // refuses is ended. Before Start.
  using HeartbeatSource = std::function<void(std::vector<Heartbeat>* heartbeats)>;
  void SetHeartbeatSource(HeartbeatSource source) { heartbeat_source_ = std::move(source); }

  void Start();
  // Waits for the thread to end. What is queued or watched is answered.
  void Stop();

  // Handles `event`, then calls `done` with its outcome, then carries its actions out.
  // RESOURCE_EXHAUSTED when the queue is full and UNAVAILABLE when the engine has stopped: `done`
  // is not called then.
  using Done = std::function<void(const Outcome& outcome)>;
  absl::Status Post(Event event, Done done);

  // Calls `read` with the core as it is at its turn; with a status that is not OK (the engine
  // stops) the core must not be used for more than a last look.
  using ReadFn = std::function<void(const absl::Status&, const Coordinator&, absl::Time now)>;
  absl::Status Read(ReadFn read);

  // Calls `attempt` at its turn, and again after every change of the job, until it returns true;
  // with last=true when `wait` has passed or the engine stops, whatever it returns then.
  using Attempt = std::function<bool(const Coordinator&, absl::Time now, bool last)>;
  absl::Status Watch(const std::string& job_id, absl::Duration wait, Attempt attempt);

 private:
  struct PostItem {
    Event event;
    Done done;
  };
  struct WatchItem {
    std::string job_id;
    absl::Duration wait;
    Attempt attempt;
  };
  struct Watcher {
    absl::Time deadline;
    Attempt attempt;
  };
  using Item = std::variant<PostItem, ReadFn, WatchItem>;

  absl::Status Enqueue(Item item);
  void Run();
  void TakeHeartbeats(absl::Time now);
  void HandleOne(Item item);
  void CarryOut(const std::vector<Action>& actions);
  void RunWatchers(const std::string& job_id);
  // A line for a job whose state has changed.
  void LogState(const std::string& job_id);
  void ExpireWatchers();
  void RefuseOne(Item item);
  // Wall time that never goes back: the wall clock at the start plus steady time since.
  absl::Time Now();

  const EngineOptions options_;
  Clock* const clock_;
  ActionSink* const sink_;
  const absl::Time wall_start_;
  const absl::Duration steady_start_;

  HeartbeatSource heartbeat_source_;

  Mutex mu_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // The engine's thread only.
  Coordinator core_;
  std::multimap<std::string, Watcher> watchers_;  // by job
  std::map<std::string, JobState> logged_;        // jobs that have not ended, as last logged
  std::thread thread_;
};

}  // namespace muster
