// Proves that a set of schedules does a step: what any generator makes, or a list changed by hand.
// Pure. Checked in this order, and the first fault is reported:
//
// 1. Each rank's list: every (chunk, microbatch) passes forward once and backward once after it;
//    what a pass needs was received before it, what is sent was computed before it; gradients of
//    each chunk are reduced once, after its last backward pass; parameters are gathered before the
//    chunk's first forward pass; activations in flight stay within the schedule's bound.
// 2. Each channel between two ranks: sends and receives match one by one, in order.
// 3. All lists together run to their end (schedule_execution.h).
#pragma once

#include "absl/status/status.h"
#include "common/schedule/pipeline_schedule.h"
#include "common/schedule/schedule_execution.h"

namespace muster {

// FAILED_PRECONDITION names rank, position in its list and operation. With all models, overlapped
// lists too: what ends with rendezvous ends on a device whose communication runs in order as well.
absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule);
// With one model.
absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule,
                           P2pModel model);

// Most forward passes whose activations a rank may hold: pp - rank without virtual stages, then
// 2 (pp - rank - 1) + (v - 1) N + 1; never more than there are.
int MaxInFlightBound(const ScheduleOptions& options, int pipeline_rank);

}  // namespace muster
