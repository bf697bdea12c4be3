// Snapshot generations of one rank: which slot is written next, what counts, what may be dropped
// (design 3). A generation is the state after a committed iteration; it is complete here when the
// copy (and its buddy's copy) has ended, and *counted* when the step's agreement says that it is
// complete on all ranks. Pure.
//
// Invariants: three slots; the newest counted generation is never overwritten before a newer one is
// counted; at most one is being written.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace muster {

inline constexpr int kSnapshotSlots = 3;
inline constexpr int64_t kNoGeneration = -1;

class Generations {
 public:
  // What a rank's memory held when it was opened: complete generations by slot (kNoGeneration:
  // empty or torn).
  explicit Generations(const std::array<int64_t, kSnapshotSlots>& complete = {
                           kNoGeneration, kNoGeneration, kNoGeneration});

  // The slot that the snapshot of `iteration` goes to; nullopt: none is free (the last ones are not
  // counted yet), so this one is left out. Must not be called while one is being written.
  std::optional<int> Begin(int64_t iteration);
  // The one that is being written is complete here: what this rank enters into the agreement.
  void Complete();
  // It failed or was given up: the slot is free.
  void GiveUp();
  // The agreement's answer: complete on all ranks through this generation.
  void Counted(int64_t iteration);
  // After a recovery that went on from `iteration`: what is newer is of a discarded future.
  void DropAfter(int64_t iteration);

  int64_t newest_complete() const;  // kNoGeneration: none
  int64_t newest_counted() const { return counted_; }
  std::optional<int64_t> writing() const;
  // Complete ones, ascending, with their slots.
  std::vector<std::pair<int64_t, int>> complete() const;

 private:
  std::array<int64_t, kSnapshotSlots> complete_;
  std::optional<std::pair<int, int64_t>> writing_;  // slot, iteration
  int64_t counted_ = kNoGeneration;
};

}  // namespace muster
