// Proves that a set of schedules runs to its end: every send meets its receive, tensors arrive
// where and when they are needed, each microbatch passes each chunk once each way, nothing
// deadlocks. Pure.
#pragma once

#include "absl/status/status.h"
#include "common/schedule/pipeline_schedule.h"

namespace muster {

enum class P2pModel {
  // An exchange ends when all its members have met their counterparts: a send waits for its receive
  // (the strictest reading of blocking communication; buffering only removes deadlocks).
  kRendezvous,
  // An exchange is posted and left; a computation waits for the tensor that it needs.
  kAsynchronous,
};

// FAILED_PRECONDITION says which rank stands at which operation, or what does not match.
absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule,
                           P2pModel model);
// The model that the options ask for.
absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule);

}  // namespace muster
