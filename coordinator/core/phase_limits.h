// How long a phase of a job may last without progress. Nobody knows beforehand how long a model
// takes to load or a step to run, so the limit is learned from the job itself:
//
//   limit = clamp(factor * longest wait seen + margin, floor, cap); before any was seen: the cap.
//
// Steps are many and alike, and their limit decides when a hang is looked for, so that it follows
// their 99th percentile instead of their longest, with a margin of its own:
//
//   limit of a step = clamp(factor * p99 of the last steps + step_margin, floor, cap)
//
// What is over its limit is overdue: people are told who is missing, and it goes on. What is over
// the cap has failed. Progress inside a phase (another rank came through, a detail changed, a step
// was committed) starts its limit anew. Pure.
//
// Invariant: floor <= limit <= cap for each phase.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/length_histogram.h"

namespace muster {

// In the order in which a trainer goes through them.
enum class WaitPhase { kStart, kForming, kLoad, kStep, kEvaluation, kSave };
inline constexpr int kNumWaitPhases = 6;
const char* WaitPhaseName(WaitPhase phase);  // "start", "forming", ...

struct PhaseBounds {
  absl::Duration floor, cap;
};

struct PhaseLimitOptions {
  // From the launch of a trainer to its first word: a process starts, libraries load.
  PhaseBounds start{absl::Seconds(20), absl::Minutes(2)};
  PhaseBounds forming{absl::Seconds(30), absl::Minutes(10)};
  PhaseBounds load{absl::Seconds(60), absl::Minutes(60)};
  PhaseBounds step{absl::Seconds(1), absl::Minutes(30)};  // cap: recovery.watchdog_timeout_s
  PhaseBounds evaluation{absl::Seconds(60), absl::Minutes(60)};
  PhaseBounds save{absl::Seconds(60), absl::Minutes(60)};
  double factor = 3;
  absl::Duration margin = absl::Seconds(5), step_margin = absl::Seconds(1);

  const PhaseBounds& Of(WaitPhase phase) const;
  // The same cap for all phases; floors above it come down to it.
  void CapAll(absl::Duration cap);
  // A lower cap for steps.
  void CapStep(absl::Duration cap);
};

// What was seen of one phase. Outlives a restart of the coordinator.
struct PhaseSamples {
  absl::Duration longest = absl::ZeroDuration();  // wait without progress
  int64_t count = 0;
  bool operator==(const PhaseSamples&) const = default;
};
using AllPhaseSamples = std::array<PhaseSamples, kNumWaitPhases>;  // by WaitPhase

class PhaseLimits {
 public:
  explicit PhaseLimits(const PhaseLimitOptions& options) : options_(options) {}

  // A wait that ended in progress after `length`.
  void Observe(WaitPhase phase, absl::Duration length);
  absl::Duration Limit(WaitPhase phase) const;
  absl::Duration Cap(WaitPhase phase) const { return options_.Of(phase).cap; }
  const PhaseSamples& Samples(WaitPhase phase) const { return samples_[static_cast<int>(phase)]; }

  const AllPhaseSamples& all_samples() const { return samples_; }
  const LengthHistogram& steps() const { return steps_; }
  absl::Duration StepP99() const { return steps_.Quantile(0.99); }
  void Restore(const AllPhaseSamples& samples) { samples_ = samples; }
  bool RestoreSteps(const std::vector<double>& numbers) { return steps_.Restore(numbers); }
  // "limit 1m35s, learned from 120 waits of 30s at most"; of steps "limit 1.9s, learned from 120
  // steps, 99% of them within 300ms".
  std::string Describe(WaitPhase phase) const;

 private:
  const PhaseLimitOptions options_;
  AllPhaseSamples samples_;
  LengthHistogram steps_;
};

// The wait in which a job is now, and for how long.
class PhaseClock {
 public:
  explicit PhaseClock(const PhaseLimitOptions& options) : limits_(options) {}

  // The job waits in `phase` (nullopt: for nothing). Going on to another phase is progress.
  void Enter(std::optional<WaitPhase> phase, absl::Time now);
  // Progress inside the phase. `measured`: how long it took by the clock of whoever did it, which
  // knows better when the news travelled slowly.
  void Progress(absl::Time now, std::optional<absl::Duration> measured = std::nullopt);
  // Progress that teaches nothing: its length is learned from somebody else's clock.
  void Touch(absl::Time now);
  // Somebody else's clock measured a whole phase.
  void Observe(WaitPhase phase, absl::Duration length) { limits_.Observe(phase, length); }
  // This much time counts for nobody: who should have noted progress stood still.
  void Skip(absl::Duration away, absl::Time now);
  // The wait goes on from now; what was before is not known (a restarted coordinator).
  void Restart(absl::Time now);

  enum class Verdict { kInTime, kOverdue, kOverCap };
  // kOverdue is said once a wait, kOverCap each time.
  Verdict Check(absl::Time now);

  std::optional<WaitPhase> phase() const { return phase_; }
  absl::Duration Elapsed(absl::Time now) const;
  bool overdue() const { return overdue_; }
  const PhaseLimits& limits() const { return limits_; }
  PhaseLimits& limits() { return limits_; }

 private:
  void ObserveUntil(absl::Time now);

  PhaseLimits limits_;
  std::optional<WaitPhase> phase_;
  absl::Time since_;      // the last progress
  bool whole_ = true;     // `since_` was seen here, so that the wait can teach
  bool overdue_ = false;  // and said so
};

}  // namespace muster
