// Snapshot generations of one rank: which slot is written next, what counts, what may be dropped
// (design 3). A generation is the state after a committed iteration; it is complete here when the
// copy (and its buddy's copy) has ended, and *counted* when the step's agreement says that it is
// complete on all ranks. Pure.
//
// All ranks try the same generations: a try begins at a step's boundary, and whether it does
// follows from what all know (Due). At most one try is open; it ends on all ranks in the same
// agreement, counted or given up. Without that, ranks that leave out different ones would agree on
// a minimum that some of them do not hold.
//
// Invariants: three slots; the newest counted generation is never overwritten before a newer one is
// counted; at most one is being written.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace muster {

inline constexpr int kSnapshotSlots = 3;
inline constexpr int64_t kNoGeneration = -1;
// A vote, and its result: the open try failed on some rank. Stronger than all others.
inline constexpr int64_t kGivenUp = -2;

class Generations {
 public:
  // What a rank's memory held when it was opened: complete generations by slot (kNoGeneration:
  // empty or torn).
  explicit Generations(const std::array<int64_t, kSnapshotSlots>& complete = {
                           kNoGeneration, kNoGeneration, kNoGeneration});

  // Asked after each commit, and after a recovery: all ranks begin a try of `iteration` now. The
  // same answer on all. No try is open and the last counted one is `interval` committed steps old
  // (after a recovery: the safe one); interval 0: never.
  bool Due(int64_t iteration, int64_t interval) const;
  // Opens the try. The slot that the snapshot goes to; nullopt: none is free, or a given-up
  // copy is still being written; this rank's vote then gives the try up for all.
  std::optional<int> Begin(int64_t iteration);
  // The copy that is being written has ended, buddy's included. One of a try that was given up
  // meanwhile only frees its slot.
  void Complete();
  // It failed: the slot is free, and the vote gives the try up for all.
  void GiveUp();

  // What this rank enters into the agreement (StepVote::snapshot_complete), and the agreement's
  // answer (StepDecision::snapshots_counted): to be handed in before the next Due.
  int64_t vote() const;
  void Counted(int64_t result);

  // After a recovery that goes on from `iteration`, before the next step. Survivors make a new
  // object from what their memory holds first, as new processes do: an own copy that is complete
  // though its buddy's is not is unknown to the old one, but covers. What is newer is of a
  // discarded future. `counted`: RestoreDecision::snapshots; `safe`:
  // RestoreDecision::safe_snapshots, or the same as `counted` (nullopt) where nobody has a buddy.
  void Restored(int64_t iteration, int64_t counted, std::optional<int64_t> safe = std::nullopt);

  int64_t newest_complete() const;  // on this rank alone; kNoGeneration: none
  int64_t newest_counted() const { return counted_; }
  std::optional<int64_t> open_try() const { return try_; }
  std::optional<int64_t> writing() const;
  // Complete ones, ascending, with their slots.
  std::vector<std::pair<int64_t, int>> complete() const;

  // By slot; kNoGeneration: empty, torn or dropped.
  const std::array<int64_t, kSnapshotSlots>& slots() const { return complete_; }

 private:
  std::array<int64_t, kSnapshotSlots> complete_;
  std::optional<std::pair<int, int64_t>> writing_;  // slot, iteration
  std::optional<int64_t> try_;
  enum class Here { kNotYet, kDone, kFailed } here_ = Here::kNotYet;  // the open try
  int64_t counted_ = kNoGeneration;
  int64_t safe_ = kNoGeneration;  // counted, or less: what Due counts from
};

}  // namespace muster
