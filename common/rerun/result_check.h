// Is a result acceptable, and do two runs of it agree? (reference 13.2, 13.3). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace muster {

// Relative distance of two runs of the same computation: 0 when equal or both NaN; infinity when
// only one is NaN, only one is infinite, or they are infinities of opposite sign; else
// |a - b| / |a + b| * 2. Differs from Megatron where that crashes or misjudges: a = -b gives
// infinity instead of a division by zero, and +Inf against -Inf infinity instead of NaN.
double RelativeDifference(double a, double b);

enum class ResultFault { kNone, kNan, kInf };
// Loss check of check_for_nan_in_loss.
ResultFault FaultOf(double value);

// Values that stand out. For each context ("loss", ...) the first `num_samples` finite values only
// teach the largest magnitude; after that a value of at least `factor` times that maximum is
// unexpectedly large. The maximum is then frozen. NaN and infinity are no spikes (FaultOf finds
// them) and teach nothing.
class SpikeDetector {
 public:
  struct Stats {  // what a checkpoint keeps, by context
    int64_t num_seen = 0;
    double max_abs = 0;
    bool operator==(const Stats&) const = default;
  };

  explicit SpikeDetector(int64_t num_samples = 100) : num_samples_(num_samples) {}

  // `resample` forgets what the context has learned.
  bool IsUnexpectedlyLarge(double value, double factor, const std::string& context,
                           bool resample = false);

  const std::map<std::string, Stats>& stats() const { return stats_; }
  void Load(const std::map<std::string, Stats>& stats) { stats_ = stats; }

 private:
  const int64_t num_samples_;
  std::map<std::string, Stats> stats_;
};

}  // namespace muster
