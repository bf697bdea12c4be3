// One clock for all ranks of a trace: how far this rank's CLOCK_MONOTONIC is from rank 0's, and how
// sure that is. Ranks of one machine share the clock; between machines a few exchanges with rank 0
// bound the difference, before the first traced step and after the last, and what lies between them
// is taken to drift evenly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"

namespace muster {

// A question to rank 0 and its answer. `sent`, `received`: on this clock; `answered`: on rank 0's.
struct ClockPing {
  int64_t sent_ns = 0, answered_ns = 0, received_ns = 0;
};

// Rank 0's clock shows `at_ns` + `offset_ns` when this one shows `at_ns`, give or take `error_ns`.
struct ClockEstimate {
  int64_t at_ns = 0, offset_ns = 0, error_ns = 0;
};

// Of the exchange that took the shortest: the answer was made somewhere within it, so its middle is
// off by half its length at most. At least one ping.
ClockEstimate EstimateOffset(absl::Span<const ClockPing> pings);

// Of this rank's clock to rank 0's: linear through two estimates, also before and behind them.
class ClockMap {
 public:
  ClockMap() = default;  // the same clock
  ClockMap(const ClockEstimate& first, const ClockEstimate& last) : first_(first), last_(last) {}

  int64_t ToReference(int64_t local_ns) const;
  // Of either estimate; that the drift is even is not in it.
  int64_t error_ns() const;
  // Nanoseconds that rank 0's clock gains a second.
  double drift_ns_per_s() const;

 private:
  ClockEstimate first_, last_;
};

struct ClockSync {
  ClockEstimate estimate;
  int64_t reference_now_ns = 0;  // rank 0's clock when it began: the same on all ranks
  bool shared = false;           // this rank runs on rank 0's machine: no estimate
  int num_clocks = 1;            // machines in the world
};

// Names this machine's clock: equal names, one clock. Empty when the system does not tell.
std::string ClockName();

// Collective over `world`. `now`: this rank's clock; `clock_name`: as ClockName. One rank of each
// other machine exchanges messages with rank 0, and its fellows take its result.
absl::StatusOr<ClockSync> SyncClocks(Communicator& world, c10::Device device,
                                     const std::string& clock_name,
                                     const std::function<int64_t()>& now);

}  // namespace muster
