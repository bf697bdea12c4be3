// What a step has read, to be read again by its reruns (reference 13.4). Pure: whoever reads says
// how an item comes.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Invariant: position_ <= items_.size(); while it does not replay nothing was dropped since
// Advance.
template <typename Item>
class ReplayLog {
 public:
  // The stored item while replaying, else a new one, which is stored. FAILED_PRECONDITION: a rerun
  // reads more than the run before it did. Errors of `read`.
  template <typename Read>
  absl::StatusOr<Item> Next(const Read& read) {
    if (replaying_) {
      if (position_ == items_.size()) {
        return absl::FailedPreconditionError(
            "a rerun of the step reads more microbatches than the step did");
      }
      return items_[position_++];
    }
    absl::StatusOr<Item> item = read();
    if (item.ok()) items_.push_back(*item);
    return item;
  }
  // From the step's first item again.
  void Rewind() {
    replaying_ = true;
    position_ = 0;
  }
  // The next step: nothing of this one is read again.
  void Advance() {
    items_.clear();
    replaying_ = false;
    position_ = 0;
  }

  size_t size() const { return items_.size(); }
  bool replaying() const { return replaying_; }
  size_t position() const { return position_; }

 private:
  std::vector<Item> items_;
  bool replaying_ = false;
  size_t position_ = 0;
};

}  // namespace muster
