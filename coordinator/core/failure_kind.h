// What kind of failure it was, as events, causes and metrics name it. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/types.h"

namespace muster {

enum class FailureKind {
  kTrainerExit,   // its process ended, and nobody knows better
  kLaunch,        // it could not be started
  kOutOfMemory,   // of the machine, its memory limit, or the device
  kDiskFull,      // a write found no space
  kTrainerError,  // it says that it cannot go on
  kCollective,    // it failed in a collective: a symptom of another rank's failure
  kHang,          // see hang_judge.h
  kAgentLost,     // the agent process is gone or silent
  kNodeLost,      // and with it all workers of its node
  kTimeout,       // a wait reached its cap
  kWrongResult,   // its device computes wrongly (rerun_machine.h)
};
// "trainer_exit", "out_of_memory", ...: kinds of events and values of labels.
const char* FailureKindName(FailureKind kind);

// `killed_because`: not empty when the coordinator had it killed.
FailureKind KindOfExit(const ExitedReport& exited, absl::string_view killed_because);
FailureKind KindOfFailed(const FailedMessage& failed);
// Of the error of a write: "No space left on device", a quota.
bool IsDiskFull(absl::string_view error);
// Of what a program said last: an allocation that failed, on the machine or on a device.
bool IsOutOfMemory(absl::string_view text);
// What heads a cause's text: "out of memory: ", "the disk is full: "; empty of most kinds.
const char* KindPrefix(FailureKind kind);

}  // namespace muster
