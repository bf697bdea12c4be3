// Appends the operations of one rank's schedule; numbers its exchanges. Internal to this folder.
#pragma once

#include <utility>

#include "common/schedule/pipeline_schedule.h"

namespace muster {

class ScheduleBuilder {
 public:
  void Forward(int chunk, int microbatch, bool recompute = false) {
    list_.push_back({.kind = ScheduleOp::Kind::kForward,
                     .chunk = chunk,
                     .microbatch = microbatch,
                     .recompute = recompute});
  }
  void Backward(int chunk, int microbatch, bool sync) {
    list_.push_back({ScheduleOp::Kind::kBackward, chunk, microbatch, -1, sync});
  }
  void Sync(ScheduleOp::Kind kind, int chunk) { list_.push_back({kind, chunk, -1, -1, false}); }

  // What follows is not fused with what came before. An exchange without members takes no number.
  void NewExchange() { open_ = false; }
  void CommunicateIf(bool condition, ScheduleOp::Kind kind, int chunk, int microbatch) {
    if (!condition) return;
    if (!open_) ++exchange_;
    open_ = true;
    list_.push_back({kind, chunk, microbatch, exchange_, false});
  }

  RankSchedule Take() { return std::move(list_); }

 private:
  RankSchedule list_;
  int exchange_ = -1;
  bool open_ = false;
};

// Of forward step `step` of a rank with `warmup` warm-up steps (reference 4.2).
inline bool RecomputesAllLayers(const ScheduleOptions& options, int warmup, int step) {
  const std::optional<int>& partial = options.num_microbatches_with_partial_activation_checkpoints;
  return partial.has_value() && !options.forward_only && step % (warmup + 1) >= *partial;
}

}  // namespace muster
