// When the trainers of a job are probed, and what is made of their answers. A wait that lasts is
// looked at before it is over its limit, so that the verdict is there when the limit is:
//
//   probe at    half of the limit, or in time for the second one, kBetween later; from kMinWait on
//   judged      when both are answered, or kAnswerLimit after they were sent, but not before the
//               limit
//   again       while the wait lasts and nobody was accused: after a pause that grows
//
// Progress ends the watch. Pure; holds the answers of one pair of probes.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "coordinator/core/hang_judge.h"

namespace muster {

class HangWatch {
 public:
  static constexpr absl::Duration kMinWait = absl::Milliseconds(400);
  static constexpr absl::Duration kBetween = absl::Milliseconds(500);
  // Agents answer for their trainers within 1 s.
  static constexpr absl::Duration kAnswerLimit = absl::Milliseconds(1200);
  static constexpr absl::Duration kMinPause = absl::Seconds(1), kMaxPause = absl::Seconds(20);

  struct Decision {
    std::optional<int64_t> probe;  // to be sent, with this request number
    bool judge = false;            // both are there: see first(), second()
  };
  // The job has waited for `elapsed`; `limit`: how long it may.
  Decision Look(absl::Time now, absl::Duration elapsed, absl::Duration limit, int num_ranks);
  // An answer, of whatever probe.
  void Take(int rank, const ProbeReport& report);
  // It goes on, or is not watched any more.
  void Reset();

  const HangProbe& first() const { return first_; }
  const HangProbe& second() const { return second_; }

 private:
  enum class State { kIdle, kFirst, kBoth };
  void Send(HangProbe* probe, absl::Time now, int num_ranks, Decision* decision);
  static bool Complete(const HangProbe& probe);

  State state_ = State::kIdle;
  HangProbe first_, second_;
  absl::Time sent_at_;                             // the last probe
  absl::Time quiet_until_ = absl::InfinitePast();  // no probe before
  absl::Duration pause_ = kMinPause;
  int64_t last_request_ = 0;
};

}  // namespace muster
