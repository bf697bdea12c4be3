// Takes this rank's snapshots behind training, and keeps copies of other ranks' (design 3). Made
// once a process; lives through epochs. Which generation is tried when, and what counts, is
// common/recovery/generations.h; a try's copy runs on a thread of its own.
//
// A step, on the training thread (its order: worker/train/train_step.h):
//   ... passes, norms ...
//   vote.snapshot_complete = snapshotter.complete_through();   entered into the agreement
//   snapshotter.AwaitCopied();                                 before anything of the state changes
//   ... commit ...
//   snapshotter.OnCounted(decision.snapshots_counted);
//   if (snapshotter.Due(iteration)) snapshotter.Begin(...);
//
// A failure of a snapshot (no memory, a buddy that is gone) is a line of TakeEvents(), and a later
// one is tried; it is never the job's. Thread-safety: one thread, the training thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/recovery/generations.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/communicator.h"
#include "worker/snapshot/buddy_exchange.h"
#include "worker/snapshot/copy_pace.h"
#include "worker/snapshot/held_snapshots.h"
#include "worker/snapshot/snapshot_memory.h"
#include "worker/snapshot/tensor_copy.h"

namespace muster {

struct SnapshotterOptions {
  std::string job_id;
  std::string memory;       // AssignMessage::snapshot_memory; empty: none
  int64_t interval = 0;     // recovery.snapshot_interval; 0: no snapshots
  double copy_share = 0.5;  // of one processor, until somebody waits for the copy
  Clock* clock = nullptr;   // nullptr: the real one
};

// What this rank holds in the new epoch.
struct SnapshotEpoch {
  int rank = 0;
  std::string layout;           // StatePieces::layout
  std::vector<int64_t> pieces;  // of_rank[rank]
  int64_t num_pieces = 0;
  int buddy = -1;                  // AssignMessage::buddy
  c10::Device device = c10::kCPU;  // the communicator's
  int64_t number = 0;              // of the epoch
};

// The state after a committed step; the tensors change only after AwaitCopied.
struct SnapshotState {
  int64_t iteration = 0;
  int64_t epoch = 0;  // HeldState::epoch
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> texts;
};

class Snapshotter {
 public:
  // A memory that cannot be opened is an event; this rank then holds no snapshots.
  explicit Snapshotter(const SnapshotterOptions& options);
  ~Snapshotter();  // Detach

  // ---- Between epochs.
  // Ends the epoch: waits for what the thread is in, which the abort of the communicators makes
  // short.
  void Detach();
  // What the memory holds, as offers for rank `rank`: own ones and others', newest first.
  std::vector<HeldSnapshot> List(int rank) const;
  // DATA_LOSS: it is damaged; it is dropped then, and an event tells so.
  absl::StatusOr<SnapshotContents> Read(SnapshotSlot slot);
  // Collective over `world`: the state of all is that of `iteration`; `counted`:
  // RestoreDecision::snapshots (kNoGeneration at a job's start); `safe`: its safe_snapshots, the
  // same as `counted` when not given or where nobody has a buddy. What is newer is dropped. Where a
  // rank has no memory there are no snapshots in this epoch, which is an event.
  absl::Status Attach(const SnapshotEpoch& epoch, int64_t iteration, int64_t counted,
                      Communicator& world, std::optional<int64_t> safe = std::nullopt);

  // ---- Within an epoch. All of it does nothing while no snapshots are taken.
  bool Due(int64_t iteration) const;
  void Begin(SnapshotState state);
  void AwaitCopied();
  // This rank's vote: Generations::vote().
  int64_t complete_through();
  void OnCounted(int64_t result);

  // Newest generation that counts; kNoGeneration.
  int64_t newest_counted() const { return generations_.newest_counted(); }
  // Waits until the thread has nothing to do: for tests and for the end of a job.
  void AwaitIdle();
  // Lines for the job's event log.
  std::vector<std::string> TakeEvents();
  int64_t memory_bytes() const { return memory_ == nullptr ? 0 : memory_->bytes(); }

 private:
  struct Try {
    std::optional<SnapshotSlot> slot;  // none: this rank cannot, but its buddy waits for a word
    SnapshotState state;
    std::shared_ptr<c10::Event> after;
  };

  void Run();
  absl::Status Take(Try& work);
  absl::Status CopyOwn(const Try& work);
  void MarkCopied() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeOutcomes();
  void ChooseSeries(int64_t counted);
  void FreeOthers();
  void Event(const std::string& text);

  const SnapshotterOptions options_;
  RealClock real_clock_;
  std::unique_ptr<SnapshotMemory> memory_;
  std::vector<std::string> events_;
  std::set<std::string> told_;  // of this epoch: a cause is told once

  // Of the epoch.
  SnapshotEpoch epoch_;
  bool on_ = false;
  int64_t series_ = 0;  // slot numbers are kSnapshotSlots * series_ + 0, 1, 2
  Generations generations_;
  int64_t not_before_ = 0;  // iteration: after a try that was given up
  CopyPace pace_;
  TensorCopier copier_;
  std::unique_ptr<BuddyExchange> exchange_;  // null: nobody keeps copies

  std::thread thread_;
  Mutex mu_;
  CondVar changed_;
  std::deque<Try> queue_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool copied_ ABSL_GUARDED_BY(mu_) = true;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  struct Outcome {
    bool had_slot = false;
    absl::Status status;
    std::set<SnapshotSlot> kept;
  };
  std::deque<Outcome> outcomes_ ABSL_GUARDED_BY(mu_);
  std::set<SnapshotSlot> kept_;  // copies of the newest try
};

}  // namespace muster
