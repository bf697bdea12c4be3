// The keys through which the members of a new group find each other (addresses, the world's unique
// ID). Backed by the coordinator's rendezvous service through the agent; in tests by a map. Every
// key lives under the job's epoch, so what an older attempt wrote is never seen. Thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Blocks until `count` keys begin with `prefix`, then returns them all, sorted by key. One
  // request a group. ABORTED at once when the epoch is over; DEADLINE_EXCEEDED names how many are
  // there.
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>> WaitPrefix(
      const std::string& prefix, int count, absl::Duration limit) = 0;
};

}  // namespace muster
