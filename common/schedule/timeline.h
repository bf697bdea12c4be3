// When each pass of each pipeline rank runs, with a forward pass of one slot, a backward pass of
// two and communication that takes no time: what `muster schedule` draws, and the bubble it shows.
// Pure.
#pragma once

#include "absl/status/statusor.h"
#include "common/schedule/pipeline_schedule.h"
#include "common/schedule/schedule_execution.h"

namespace muster {

struct TimelineCell {
  bool backward = false;
  int chunk = 0;
  int microbatch = 0;
  SlotSpan slots;
  bool operator==(const TimelineCell&) const = default;
};

struct Timeline {
  int num_chunks = 1;
  int64_t num_slots = 0;                         // until the last rank has ended
  std::vector<std::vector<TimelineCell>> ranks;  // in order of time; what lies between is bubble

  // Idle slots over busy ones, all ranks together: to be compared with BubbleFraction.
  double MeasuredBubble() const;
};

// Overlapped schedules communicate asynchronously, the others by rendezvous. FAILED_PRECONDITION: a
// deadlock.
absl::StatusOr<Timeline> MakeTimeline(const ScheduleOptions& options,
                                      const PipelineSchedule& schedule, PassSlots slots = {});

}  // namespace muster
