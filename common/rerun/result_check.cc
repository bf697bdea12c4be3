#include "common/rerun/result_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster {

double RelativeDifference(double a, double b) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (std::isnan(a) && std::isnan(b)) return 0;
  if (a == b) return 0;  // infinities of one sign too
  if (!std::isfinite(a) || !std::isfinite(b)) return kInf;
  if (a + b == 0) return kInf;
  if (!std::isfinite(a + b) || !std::isfinite(a - b)) return RelativeDifference(a / 4, b / 4);
  return std::fabs(a - b) / std::fabs(a + b) * 2;
}

ResultFault FaultOf(double value) {
  if (std::isnan(value)) return ResultFault::kNan;
  if (std::isinf(value)) return ResultFault::kInf;
  return ResultFault::kNone;
}

bool SpikeDetector::IsUnexpectedlyLarge(double value, double factor, const std::string& context,
                                        bool resample) {
  if (!std::isfinite(value)) return false;
  Stats& stats = stats_[context];
  if (resample) stats = {};
  if (stats.num_seen < num_samples_) {
    ++stats.num_seen;
    stats.max_abs = std::max(stats.max_abs, std::fabs(value));
    return false;
  }
  return std::fabs(value) >= stats.max_abs * factor;
}

}  // namespace muster
