#include "coordinator/core/hang_watch.h"

#include <algorithm>

namespace muster {
namespace {

// From the first probe to the verdict at the soonest: the second one, and a few ticks for both
// probes and their answers to travel.
const absl::Duration kPair = HangWatch::kBetween + absl::Milliseconds(150);

}  // namespace

void HangWatch::Send(HangProbe* probe, absl::Time now, int num_ranks, Decision* decision) {
  // Numbers of a coordinator's former life must not come again: they count up from the clock.
  last_request_ = std::max(last_request_ + 1, absl::ToUnixMillis(now));
  *probe = {.request = last_request_};
  probe->reports.resize(num_ranks);
  sent_at_ = now;
  decision->probe = last_request_;
}

bool HangWatch::Complete(const HangProbe& probe) {
  return std::all_of(probe.reports.begin(), probe.reports.end(),
                     [](const auto& report) { return report.has_value(); });
}

HangWatch::Decision HangWatch::Look(absl::Time now, absl::Duration elapsed, absl::Duration limit,
                                    int num_ranks) {
  Decision decision;
  const absl::Duration look_at = std::max(std::min(limit / 2, limit - kPair), kMinWait);
  switch (state_) {
    case State::kIdle:
      if (elapsed < look_at || now < quiet_until_) return decision;
      Send(&first_, now, num_ranks, &decision);
      state_ = State::kFirst;
      return decision;
    case State::kFirst:
      if (now - sent_at_ < kBetween) return decision;
      Send(&second_, now, num_ranks, &decision);
      state_ = State::kBoth;
      return decision;
    case State::kBoth:
      if (elapsed < limit) return decision;
      if (now - sent_at_ < kAnswerLimit && !(Complete(first_) && Complete(second_))) {
        return decision;
      }
      decision.judge = true;
      state_ = State::kIdle;
      quiet_until_ = now + pause_;
      pause_ = std::min(2 * pause_, kMaxPause);
      return decision;
  }
  return decision;
}

void HangWatch::Take(int rank, const ProbeReport& report) {
  if (state_ == State::kIdle) return;
  for (HangProbe* probe : {&first_, &second_}) {
    if (probe->request != report.request || rank < 0 ||
        rank >= static_cast<int>(probe->reports.size())) {
      continue;
    }
    probe->reports[rank] = report;
  }
}

void HangWatch::Reset() {
  state_ = State::kIdle;
  first_ = second_ = {};
  quiet_until_ = absl::InfinitePast();
  pause_ = kMinPause;
}

}  // namespace muster
