// Executes the lists of all pipeline ranks abstractly: passes take time, communication takes none,
// and a rank waits where the model of communication makes it wait. Shows deadlocks and gives the
// times of every operation. Pure.
//
// What comes out does not depend on the order in which the ranks are advanced: each waits for
// messages of first-in first-out channels and for nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/pipeline_schedule.h"

namespace muster {

enum class P2pModel {
  // An exchange ends when all its members have met their counterparts: a send waits for its
  // receive (the strictest reading of blocking communication).
  kRendezvous,
  // An exchange ends when its receives have arrived; sends are left in a buffer.
  kBuffered,
  // An exchange is posted and left; a pass waits for the tensor that it needs.
  kAsynchronous,
};
const char* P2pModelName(P2pModel model);  // "rendezvous", ...

// In time slots.
struct PassSlots {
  int forward = 1, backward = 2;
};

struct SlotSpan {
  int64_t begin = 0, end = 0;
  bool operator==(const SlotSpan&) const = default;
};
// By rank and position in its list. A pass: when it runs. An exchange: from when the rank reaches
// it until the rank goes on.
using ExecutionTimes = std::vector<std::vector<SlotSpan>>;

// `schedule` keeps the rules of each list and of each channel (schedule_check.h).
// FAILED_PRECONDITION: a deadlock; says for each rank that is stuck at which operation it waits for
// whom, and the cycle if there is one.
absl::StatusOr<ExecutionTimes> ExecuteSchedule(const ScheduleOptions& options,
                                               const PipelineSchedule& schedule, P2pModel model,
                                               PassSlots slots = {});

// Shared with the checker.
bool IsCommunication(ScheduleOp::Kind kind);
bool IsSend(ScheduleOp::Kind kind);
// Along the stages: activations; else gradients.
bool IsForwardMessage(ScheduleOp::Kind kind);
// The rank at the other end of a send or receive of `rank`.
int PeerRank(int pp, int rank, ScheduleOp::Kind kind);
// "rank 1, operation 4 (recv_forward chunk 0 microbatch 2)"; operations count from 0.
std::string DescribeOp(const PipelineSchedule& schedule, int rank, size_t position);

}  // namespace muster
