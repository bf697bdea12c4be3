// The thread that owns the coordinator's core. Events come in through a bounded queue and are
// handled in batches; a timer ticks. The queue holds the only lock; callbacks run on the engine's
// thread, never under it, and must not block.
//
// Group commit: the core handles all events of a batch, what they changed is written to the journal
// as one transaction, and only then come replies and actions, in the order of the events. Reads and
// watchers come after that, too: nobody sees what a crash could take back.
//
// When the journal cannot be written, the batch is held and written again each tick. Meanwhile the
// core is not ticked, reads show it as it is (its storage() says what is wrong), heartbeats and
// closed streams are taken, reports are dropped without an acknowledgement, and all else is refused
// with UNAVAILABLE. Once it could be written, all agent streams are ended: agents come back and
// report again.
//
// Public methods are thread-safe. A callback that was accepted runs exactly once; when the engine
// stops before its turn, with UNAVAILABLE.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/engine/journal.h"

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
  size_t max_batch = 1'024;  // events of one transaction
  // Reports wait no longer for the disk than this and a tick.
  absl::Duration sync_within = absl::Milliseconds(800);
  absl::Duration maintain_every = absl::Seconds(1);
};

// What a journal held.
struct Restored {
  size_t num_jobs = 0, num_active_jobs = 0, num_agents = 0, num_records = 0, num_rows = 0;
  absl::Duration took;
};

class Engine {
 public:
  // All of them outlive the engine. Without a journal nothing outlives the engine itself.
  Engine(const EngineOptions& options, Clock* clock, ActionSink* sink, Journal* journal = nullptr);
  ~Engine();  // stops

  // Heartbeats do not queue up. Once a tick, on the engine's thread, `source` appends the newest
  // one of each stream that has had one since its last call; a stream whose heartbeat the core
  // refuses is ended. Before Start.
  using HeartbeatSource = std::function<void(std::vector<Heartbeat>* heartbeats)>;
  void SetHeartbeatSource(HeartbeatSource source) { heartbeat_source_ = std::move(source); }

  // Takes up what the journal holds. Once, before Start. An error leaves the core unusable.
  absl::StatusOr<Restored> Restore();

  void Start();
  // Waits for the thread to end. What is queued or watched is answered; all that was acknowledged
  // is on the disk.
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

  // Events, reads and watches that wait for the engine's thread.
  size_t QueueLength() {
    MutexLock lock(&mu_);
    return queue_.size();
  }

  // Rows of a job's ledger with index >= since, at most `limit`: also those that are not in memory
  // any more. Only from within the callbacks of Read and Watch.
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(const JobMachine& job, LedgerKind kind,
                                                    int64_t since, int64_t limit);

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
  // Handled, and to be released once what it changed is written.
  struct Finished {
    Outcome outcome;
    Done done;
  };
  using Release = std::variant<Finished, ReadFn, WatchItem>;

  absl::Status Enqueue(Item item);
  void Run();
  std::deque<Item> NextBatch(bool* stopping);

  // ---- handling (engine.cc)
  void OnTimer(absl::Time now);
  void TakeHeartbeats(absl::Time now);
  void TakeOne(Item item, absl::Time now);
  void RefuseOne(Item item);
  void Keep(Outcome outcome, Done done);

  // ---- writing (engine_commit.cc)
  // Writes what has changed, then releases. Of no effect on the core when it fails.
  void Commit();
  void OnWriteFailed(const absl::Status& status);
  void OnWrittenAgain();
  bool holding() const { return !write_error_.ok(); }
  // In place of the core, while it holds.
  Outcome AnswerWhileHolding(const Event& event) const;
  void MaintainJournal(absl::Time now);
  void SetStorage(const absl::Status& status);

  // ---- releasing (engine_release.cc)
  void ReleaseAll();
  void ReleaseReads();
  void Start(WatchItem watch);
  void CarryOut(const std::vector<Action>& actions);
  void RunWatchers(const std::string& job_id);
  // A line for a job whose state has changed.
  void LogState(const std::string& job_id);
  void ExpireWatchers();
  // Wall time that never goes back: the wall clock at the start plus steady time since.
  absl::Time Now();

  const EngineOptions options_;
  Clock* const clock_;
  ActionSink* const sink_;
  Journal* const journal_;  // nullptr: none
  const absl::Time wall_start_;
  const absl::Duration steady_start_;
  HeartbeatSource heartbeat_source_;

  Mutex mu_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // The engine's thread only.
  Coordinator core_;
  absl::Time next_tick_ = absl::InfinitePast();
  bool handled_ = false;           // the core may have changed since its changes were taken
  DurableChanges unwritten_;       // empty unless the engine holds, or is about to write
  std::vector<Release> releases_;  // in order
  absl::Status write_error_;       // of the last attempt
  bool retry_ = false;             // it is time for the next one
  absl::Time unsynced_since_ = absl::InfiniteFuture();
  absl::Time next_maintenance_ = absl::InfinitePast();
  std::set<std::string> changed_jobs_;            // whose watchers are to be run
  std::multimap<std::string, Watcher> watchers_;  // by job
  std::map<std::string, JobState> logged_;        // jobs that have not ended, as last logged
  std::thread thread_;
};

}  // namespace muster
