// Where the core's durable state is kept. Used by one thread: the engine's.
#pragma once

#include <string>
#include <vector>

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
  // machine. RESOURCE_EXHAUSTED: the disk is full; UNAVAILABLE: it cannot be written. After an
  // error nothing has changed, and the same call may be made again.
  virtual absl::Status Write(const DurableChanges& changes) = 0;
  // Rows of one job and kind with index >= since, by index, at most `limit`: also those that are
  // not in memory any more.
  virtual absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind,
                                                            int64_t since, int64_t limit) = 0;
  // After OK all that was written survives the machine.
  virtual absl::Status Sync() { return absl::OkStatus(); }
  // To be called about once a second, between writes: tidies up. Not OK while it can be written
  // only for a while yet, with what is wrong.
  virtual absl::Status Maintain() { return absl::OkStatus(); }
  // For messages: its file.
  virtual std::string Name() const { return "the journal"; }
};

// `more` happened after what is in `changes`: the last value of a key counts.
void MergeChanges(DurableChanges more, DurableChanges* changes);

}  // namespace muster
