// Appends the operations of one rank's schedule; numbers its exchanges. Internal to this folder.
#pragma once

#include <utility>

#include "common/schedule/pipeline_schedule.h"

namespace muster {

class ScheduleBuilder {
 public:
  void Forward(int chunk, int microbatch) {
    list_.push_back({ScheduleOp::Kind::kForward, chunk, microbatch, -1, false});
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

}  // namespace muster
