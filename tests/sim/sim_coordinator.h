// The coordinator's process in a simulation: the core, and around it what coordinator/engine does,
// without threads. A queue; batches of what is queued are handled together and written as one
// transaction; then replies and actions go out in order. The process can die before the write,
// between write and replies, and after some of the replies; it can stand still; its disk can be
// full.
//
// Journal not writable, as engine_commit.cc: what could not be written is held and tried again each
// tick; meanwhile heartbeats and streams that close are taken, report batches are not acknowledged,
// all else is refused with UNAVAILABLE, and the core does not tick. When it is written, the agents'
// streams are ended so that they send their reports again.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "tests/sim/sim_context.h"
#include "tests/sim/sim_journal.h"

namespace muster {

// Where in the life of a batch the process dies.
enum class CrashPoint { kBeforeWrite, kAfterWrite, kAmidReplies };

class SimCoordinatorHost {
 public:
  struct Outside {
    std::function<void(StreamId, const AgentMessage&)> send;
    std::function<void(StreamId, const absl::Status&)> end;
    std::function<void(const WaitDone&)> answer;
    // After each event, with its actions; after each transaction; after a restart.
    std::function<void(const std::vector<Action>&)> handled;
    std::function<void()> written, restored;
    std::function<void()> died;  // all streams and calls break
  };
  using Done = std::function<void(const Outcome&)>;

  SimCoordinatorHost(Sim* sim, SimJournal* journal, const CoordinatorOptions& options,
                     Outside outside);

  // A new process reads the journal.
  void Start();
  void Crash();
  bool up() const { return core_ != nullptr; }
  bool holding() const { return holding_; }
  const Coordinator& core() const { return *core_; }
  int lives() const { return lives_; }

  // UNAVAILABLE while there is no process, RESOURCE_EXHAUSTED when its queue is full.
  absl::Status Post(Event event, Done done);
  void Beat(const Heartbeat& heartbeat);  // the newest of each stream counts

  // The process does nothing for a while (SIGSTOP, a slow disk).
  void StandStill(absl::Duration duration) { stopped_until_ = sim_->steady() + duration; }
  // Its wall clock is set; the running process keeps to its steady one.
  // Writes go through, but only from a reserve: nothing new may begin.
  void SetDisk(const absl::Status& state) { disk_ = state; }
  void JumpClock(absl::Duration by) { wall_offset_ += by; }
  // At the write with this number (of all lives, from 1).
  void CrashAt(int64_t write, CrashPoint point) { plan_ = {write, point}; }
  int64_t num_batches() const { return num_batches_; }
  int64_t num_refused() const { return num_refused_; }
  size_t queue_size() const { return queue_.size(); }
  absl::Time Now() const { return wall_start_ + (sim_->steady() - steady_start_); }

  static constexpr size_t kMaxQueue = 3'000;
  static constexpr absl::Duration kTick = absl::Milliseconds(50);

 private:
  struct Item {
    Event event;
    Done done;
  };
  struct Release {  // an answer and its actions, to go out after the write
    Done done;
    Outcome outcome;
  };
  void Wake(absl::Duration delay);
  void Pump();
  void HandleItem(Item item);
  void HandleHeartbeats();
  void Commit();
  void LetGo(std::vector<Release> releases);
  void Keep(Outcome outcome, Done done);
  void OnWriteFailed(const absl::Status& status);
  void OnWrittenAgain();
  void SetStorage(const absl::Status& status);
  void CarryOut(const std::vector<Action>& actions);

  Sim* const sim_;
  SimJournal* const journal_;
  const CoordinatorOptions options_;
  const Outside outside_;
  absl::Duration wall_offset_;
  absl::Status disk_;  // what maintaining the journal says
  std::optional<std::pair<int64_t, CrashPoint>> plan_;
  int64_t num_batches_ = 0, num_refused_ = 0;
  int lives_ = 0;

  // ---- of one process
  std::unique_ptr<Coordinator> core_;
  absl::Time wall_start_;
  absl::Duration steady_start_, stopped_until_, next_tick_, next_sync_;
  std::deque<Item> queue_;
  std::map<StreamId, Heartbeat> heartbeats_;
  std::vector<Release> releases_;  // wait for the write
  DurableChanges unwritten_;
  bool holding_ = false;  // the last write failed
  bool retry_ = false;    // a tick has come since
  bool busy_ = false;     // the thread waits for the disk
};

}  // namespace muster
