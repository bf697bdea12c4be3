// The coordinator may be away for a while: it restarts, and its jobs train on. Whether a command
// that follows a job goes on asking, and what it says meanwhile. Pure; not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster {

class Patience {
 public:
  // Longer than the ten minutes that a cluster survives without its coordinator.
  static constexpr absl::Duration kLimit = absl::Minutes(15);

  using Note = std::function<void(const std::string&)>;
  // `note` is called when the coordinator goes and when it is back.
  Patience(absl::Duration limit, Note note) : limit_(limit), note_(std::move(note)) {}

  // Whether to repeat the call that ended with `status` at `now` (any steady time). Never before a
  // first answer: an address where nobody has answered yet is most likely a wrong one.
  bool AskAgain(const absl::Status& status, absl::Duration now);

 private:
  const absl::Duration limit_;
  const Note note_;
  std::optional<absl::Duration> last_answer_;
  bool away_ = false;
};

// UNAVAILABLE or DEADLINE_EXCEEDED: it says nothing about the job.
bool IsAway(const absl::Status& status);

}  // namespace muster
