// Where a node's reports wait that memory has no room for while the coordinator is away: first in,
// first out. worker/agent keeps it in files. Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "worker/core/agent_messages.h"

namespace muster {

class ReportSpill {
 public:
  struct Taken {
    std::vector<NodeReport> reports;  // in their order
    AssignmentKey first;              // whose the first one was, and its rank
    int rank = 0;
    size_t log_lines_left_out = 0;  // before and among these, for want of room
    size_t unreadable = 0;          // reports that came back damaged, and are lost
  };

  virtual ~ReportSpill() = default;
  // Puts these behind all others. RESOURCE_EXHAUSTED when the bound or the disk leaves no room,
  // also after the oldest log lines have given way; UNAVAILABLE for other errors. Then nothing was
  // added.
  virtual absl::Status Append(const std::deque<NodeReport>& reports) = 0;
  // The oldest ones that were appended together; only while not empty(). They are gone from here.
  virtual Taken TakeOldest() = 0;
  virtual bool empty() const = 0;
  virtual void Clear() = 0;
};

}  // namespace muster
