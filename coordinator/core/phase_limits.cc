#include "coordinator/core/phase_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::string Text(absl::Duration duration) {
  const absl::Duration unit =
      duration < absl::Seconds(10) ? absl::Milliseconds(100) : absl::Seconds(1);
  return absl::FormatDuration(
      absl::Trunc(duration, duration < absl::Seconds(1) ? absl::Milliseconds(1) : unit));
}

}  // namespace

const char* WaitPhaseName(WaitPhase phase) {
  switch (phase) {
    case WaitPhase::kStart:
      return "start";
    case WaitPhase::kForming:
      return "forming";
    case WaitPhase::kLoad:
      return "load";
    case WaitPhase::kStep:
      return "step";
    case WaitPhase::kEvaluation:
      return "evaluation";
    case WaitPhase::kSave:
      return "save";
  }
  return "?";
}

const PhaseBounds& PhaseLimitOptions::Of(WaitPhase phase) const {
  switch (phase) {
    case WaitPhase::kStart:
      return start;
    case WaitPhase::kForming:
      return forming;
    case WaitPhase::kLoad:
      return load;
    case WaitPhase::kStep:
      return step;
    case WaitPhase::kEvaluation:
      return evaluation;
    case WaitPhase::kSave:
      return save;
  }
  return step;
}

void PhaseLimitOptions::CapAll(absl::Duration cap) {
  for (PhaseBounds* bounds : {&start, &forming, &load, &step, &evaluation, &save}) {
    *bounds = {std::min(bounds->floor, cap), cap};
  }
}

void PhaseLimitOptions::CapStep(absl::Duration cap) {
  step.cap = std::min(step.cap, cap);
  step.floor = std::min(step.floor, step.cap);
}

void PhaseLimits::Observe(WaitPhase phase, absl::Duration length) {
  PhaseSamples& samples = samples_[static_cast<int>(phase)];
  // No wait lasts beyond the cap, so a longer figure is a clock's mistake and teaches nothing more.
  samples.longest = std::clamp(length, samples.longest, std::max(samples.longest, Cap(phase)));
  ++samples.count;
  if (phase == WaitPhase::kStep) steps_.Add(std::min(length, Cap(phase)));
}

absl::Duration PhaseLimits::Limit(WaitPhase phase) const {
  const PhaseBounds& bounds = options_.Of(phase);
  const PhaseSamples& samples = Samples(phase);
  if (samples.count == 0) return bounds.cap;
  // A coordinator of before that knew no percentile has left the longest.
  const bool steps = phase == WaitPhase::kStep && steps_.count() > 0;
  const absl::Duration learned = steps ? options_.factor * StepP99() + options_.step_margin
                                       : options_.factor * samples.longest + options_.margin;
  return std::min(std::max(learned, bounds.floor), bounds.cap);
}

std::string PhaseLimits::Describe(WaitPhase phase) const {
  const PhaseSamples& samples = Samples(phase);
  const std::string limit = absl::StrCat("limit ", Text(Limit(phase)));
  if (samples.count == 0) return absl::StrCat(limit, ", none seen before");
  if (phase == WaitPhase::kStep && steps_.count() > 0) {
    return absl::StrCat(limit, ", learned from ", samples.count, " steps, 99% of them within ",
                        Text(StepP99()));
  }
  return absl::StrCat(limit, ", learned from ", samples.count, " waits of ", Text(samples.longest),
                      " at most");
}

void PhaseClock::Enter(std::optional<WaitPhase> phase, absl::Time now) {
  if (phase == phase_) return;
  ObserveUntil(now);
  phase_ = phase;
  since_ = now;
  whole_ = true;
  overdue_ = false;
}

void PhaseClock::Progress(absl::Time now, std::optional<absl::Duration> measured) {
  if (!phase_.has_value()) return;
  if (measured.has_value()) {
    limits_.Observe(*phase_, *measured);
  } else {
    ObserveUntil(now);
  }
  Touch(now);
}

void PhaseClock::Touch(absl::Time now) {
  since_ = std::max(since_, now);
  whole_ = true;
  overdue_ = false;
}

void PhaseClock::Skip(absl::Duration away, absl::Time now) {
  since_ = std::min(since_ + away, now);
  whole_ = false;
}

void PhaseClock::Restart(absl::Time now) {
  since_ = now;
  whole_ = false;
  overdue_ = false;
}

PhaseClock::Verdict PhaseClock::Check(absl::Time now) {
  if (!phase_.has_value()) return Verdict::kInTime;
  const absl::Duration elapsed = now - since_;
  if (elapsed >= limits_.Cap(*phase_)) return Verdict::kOverCap;
  if (overdue_ || elapsed < limits_.Limit(*phase_)) return Verdict::kInTime;
  overdue_ = true;
  return Verdict::kOverdue;
}

absl::Duration PhaseClock::Elapsed(absl::Time now) const {
  return phase_.has_value() ? std::max(now - since_, absl::ZeroDuration()) : absl::ZeroDuration();
}

void PhaseClock::ObserveUntil(absl::Time now) {
  if (phase_.has_value() && whole_) limits_.Observe(*phase_, now - since_);
}

}  // namespace muster
