// Coordinator's part that says what must outlive it, and takes it up again.
#include "coordinator/core/coordinator.h"

namespace muster {

DurableChanges Coordinator::TakeChanges() { return {}; }

absl::Status Coordinator::Restore(const DurableState& state, absl::Time now) {
  return absl::OkStatus();
}

}  // namespace muster
