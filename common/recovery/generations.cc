#include "common/recovery/generations.h"

#include <algorithm>

#include "common/base/check.h"

namespace muster {

Generations::Generations(const std::array<int64_t, kSnapshotSlots>& complete)
    : complete_(complete) {}

bool Generations::Due(int64_t iteration, int64_t interval) const {
  if (interval <= 0 || try_.has_value()) return false;
  // The beginning needs no snapshot: it is made from the seed again.
  return iteration - std::max<int64_t>(counted_, 0) >= interval;
}

std::optional<int> Generations::Begin(int64_t iteration) {
  MUSTER_CHECK_MSG(!try_.has_value(), "a snapshot was begun while another one is open");
  MUSTER_CHECK_MSG(iteration != counted_, "a counted snapshot was begun again");
  try_ = iteration;
  failed_ = writing_.has_value();
  if (failed_) return std::nullopt;
  // The slot of this very iteration (left by a try that a recovery ended), else an empty one (they
  // hold kNoGeneration, less than any iteration), else the oldest.
  std::optional<int> slot;
  for (int i = 0; i < kSnapshotSlots; ++i) {
    if (complete_[i] == iteration) {
      slot = i;
      break;
    }
    const bool keeps = complete_[i] != kNoGeneration && complete_[i] == counted_;
    if (!keeps && (!slot.has_value() || complete_[i] < complete_[*slot])) slot = i;
  }
  MUSTER_CHECK(slot.has_value());
  complete_[*slot] = kNoGeneration;
  writing_ = {*slot, iteration};
  return slot;
}

void Generations::Complete() {
  MUSTER_CHECK_MSG(writing_.has_value(), "no snapshot is being written");
  if (writing_->second == try_ && !failed_) complete_[writing_->first] = writing_->second;
  writing_.reset();
}

void Generations::GiveUp() {
  if (!writing_.has_value()) return;
  if (writing_->second == try_) failed_ = true;
  writing_.reset();
}

int64_t Generations::vote() const {
  if (!try_.has_value()) return counted_;
  if (failed_) return kGivenUp;
  return SlotOf(*try_).has_value() ? *try_ : counted_;
}

void Generations::Counted(int64_t result) {
  if (!try_.has_value()) return;
  if (result == *try_) counted_ = result;
  if (result != *try_ && result != kGivenUp) return;
  try_.reset();
  failed_ = false;
}

void Generations::Restored(int64_t iteration, int64_t counted) {
  MUSTER_CHECK_MSG(!writing_.has_value(), "a snapshot is being written during a recovery");
  MUSTER_CHECK(counted <= iteration);
  for (int64_t& held : complete_) {
    if (held > iteration) held = kNoGeneration;
  }
  try_.reset();
  failed_ = false;
  counted_ = counted;
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

std::optional<int> Generations::SlotOf(int64_t iteration) const {
  const auto it = std::find(complete_.begin(), complete_.end(), iteration);
  if (it == complete_.end()) return std::nullopt;
  return static_cast<int>(it - complete_.begin());
}

}  // namespace muster
