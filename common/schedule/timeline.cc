#include "common/schedule/timeline.h"

#include <algorithm>

#include "common/base/status.h"

namespace muster {

double Timeline::MeasuredBubble() const {
  int64_t busy = 0;
  for (const std::vector<TimelineCell>& rank : ranks) {
    for (const TimelineCell& cell : rank) busy += cell.slots.end - cell.slots.begin;
  }
  if (busy == 0) return 0;
  const int64_t all = num_slots * static_cast<int64_t>(ranks.size());
  return static_cast<double>(all - busy) / static_cast<double>(busy);
}

absl::StatusOr<Timeline> MakeTimeline(const ScheduleOptions& options,
                                      const PipelineSchedule& schedule, PassSlots slots) {
  const P2pModel model = options.overlap_p2p_comm ? P2pModel::kAsynchronous : P2pModel::kRendezvous;
  ASSIGN_OR_RETURN(const ExecutionTimes times, ExecuteSchedule(options, schedule, model, slots));
  Timeline timeline;
  timeline.num_chunks = options.virtual_pp;
  timeline.ranks.resize(schedule.size());
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    for (size_t i = 0; i < schedule[rank].size(); ++i) {
      const ScheduleOp& op = schedule[rank][i];
      const bool backward = op.kind == ScheduleOp::Kind::kBackward;
      if (!backward && op.kind != ScheduleOp::Kind::kForward) continue;
      timeline.ranks[rank].push_back({backward, op.chunk, op.microbatch, times[rank][i]});
      timeline.num_slots = std::max(timeline.num_slots, times[rank][i].end);
    }
  }
  return timeline;
}

}  // namespace muster
