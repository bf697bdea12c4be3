// Where the core's durable state is kept. Used by the engine's thread only.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/durable.h"

namespace muster {

class Journal {
 public:
  virtual ~Journal() = default;
  // All records, and of each job and kind the newest `tail` ledger rows.
  virtual absl::StatusOr<DurableState> Load(int64_t tail) = 0;
  // One transaction: all of it or nothing, also when the process or the machine dies in between.
  // After OK it survives the process; with kDecision, and for all that was written before, also the
  // machine. RESOURCE_EXHAUSTED: the disk is full. After an error nothing has changed, and the same
  // call may be made again.
  virtual absl::Status Write(const DurableChanges& changes) = 0;
};

}  // namespace muster
