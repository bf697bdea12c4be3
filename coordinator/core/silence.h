// Whether an agent that has not been heard for longer than its heartbeat timeout is lost. Silence
// is not death: the network between it and the coordinator may be cut while its trainers train on,
// so what the others of its job say counts. Pure.
//
//   a  it runs nothing that trains: lost.
//   b  steps of its job still advance, and they need every rank: kept.
//   c  its stream ended while it was fresh, which is what happens when a process ends: lost when it
//      did not come back within the timeout, unless b held when its trainers must have been dead.
//   d  others of its job are heard, and while they were the job has made no progress for longer
//   than
//      its limit: lost. What happened while we were cut off from all of them is not known.
//   e  nobody of its job is heard, so it is rather we who are cut off: kept up to silence_limit.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace muster {

struct Silence {
  absl::Time now, last_sign;            // of the agent's life
  absl::Duration timeout;               // the agent's heartbeat timeout, < now - last_sign
  std::optional<absl::Time> closed_at;  // when its stream ended, if it was fresh then
  bool trains = false;                  // it holds ranks of a job that should make progress
  absl::Time last_progress;             // the newest sign that such a job advances
  absl::Duration patience;              // how long such a job may go without progress now
  bool others_heard = false;            // other agents of such a job, within the timeout
  absl::Time heard_since = absl::InfinitePast();  // then: without a break since
  absl::Duration limit = absl::Seconds(60);       // silence_limit
};

struct SilenceDecision {
  bool lost = false;
  std::string reason;
  bool operator==(const SilenceDecision&) const = default;
};

SilenceDecision DecideSilence(const Silence& silence);

// An agent's trainers end within this time of it: their control socket is gone.
inline constexpr absl::Duration kTrainersOutliveAgent = absl::Seconds(2);

}  // namespace muster
