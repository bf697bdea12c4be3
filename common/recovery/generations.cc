#include "common/recovery/generations.h"

#include <algorithm>

#include "common/base/check.h"

namespace muster {

Generations::Generations(const std::array<int64_t, kSnapshotSlots>& complete)
    : complete_(complete) {}

bool Generations::Due(int64_t iteration, int64_t interval) const {
  if (interval <= 0 || try_.has_value()) return false;
  // The beginning needs no snapshot: it is made from the seed again.
  return iteration > counted_ && iteration - std::max<int64_t>(safe_, 0) >= interval;
}

std::optional<int> Generations::Begin(int64_t iteration) {
  MUSTER_CHECK_MSG(!try_.has_value(), "a snapshot was begun while another one is open");
  try_ = iteration;
  // The slot of this very iteration (left by a try that a recovery ended), else an empty one (they
  // hold kNoGeneration, less than any iteration), else the oldest.
  std::optional<int> slot;
  for (int i = 0; i < kSnapshotSlots; ++i) {
    if (complete_[i] != kNoGeneration && complete_[i] == counted_) continue;
    if (complete_[i] == iteration) {
      slot = i;
      break;
    }
    if (!slot.has_value() || complete_[i] < complete_[*slot]) slot = i;
  }
  // All slots hold the counted iteration only in a memory that saw it run in three epochs.
  here_ = writing_.has_value() || !slot.has_value() ? Here::kFailed : Here::kNotYet;
  if (here_ == Here::kFailed) return std::nullopt;
  complete_[*slot] = kNoGeneration;
  writing_ = {*slot, iteration};
  return slot;
}

void Generations::Complete() {
  MUSTER_CHECK_MSG(writing_.has_value(), "no snapshot is being written");
  if (writing_->second == try_ && here_ == Here::kNotYet) {
    complete_[writing_->first] = writing_->second;
    here_ = Here::kDone;
  }
  writing_.reset();
}

void Generations::GiveUp() {
  if (!writing_.has_value()) return;
  if (writing_->second == try_) here_ = Here::kFailed;
  writing_.reset();
}

int64_t Generations::vote() const {
  if (!try_.has_value()) return counted_;
  switch (here_) {
    case Here::kNotYet:
      return kNoGeneration;
    case Here::kDone:
      return *try_;
    case Here::kFailed:
      return kGivenUp;
  }
  MUSTER_CHECK(false);
}

void Generations::Counted(int64_t result) {
  if (!try_.has_value()) return;
  if (result == *try_) counted_ = safe_ = result;
  if (result == *try_ || result == kGivenUp) try_.reset();
}

void Generations::Restored(int64_t iteration, int64_t counted, std::optional<int64_t> safe) {
  MUSTER_CHECK_MSG(!writing_.has_value(), "a snapshot is being written during a recovery");
  MUSTER_CHECK(counted <= iteration);
  for (int64_t& held : complete_) {
    if (held > iteration) held = kNoGeneration;
  }
  try_.reset();
  counted_ = counted;
  safe_ = safe.value_or(counted);
}

int64_t Generations::newest_complete() const {
  return *std::max_element(complete_.begin(), complete_.end());
}

std::optional<int64_t> Generations::writing() const {
  if (!writing_.has_value()) return std::nullopt;
  return writing_->second;
}

std::vector<std::pair<int64_t, int>> Generations::complete() const {
  std::vector<std::pair<int64_t, int>> result;
  for (int i = 0; i < kSnapshotSlots; ++i) {
    if (complete_[i] != kNoGeneration) result.emplace_back(complete_[i], i);
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace muster
