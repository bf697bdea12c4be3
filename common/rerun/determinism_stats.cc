#include "common/rerun/determinism_stats.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace muster {

void DeterminismStats::Record(double difference) {
  if (difference == 0) {
    ++identical_;
    return;
  }
  if (samples_.size() < kMaxSamples) {
    samples_.push_back(difference);
  } else {
    samples_[static_cast<size_t>(different_) % kMaxSamples] = difference;
  }
  ++different_;
  max_ = std::max(max_, difference);
}

void DeterminismStats::Merge(const DeterminismStats& other) {
  // What the other has dropped is counted no more here: its samples stand for it.
  for (const double sample : other.samples_) Record(sample);
  identical_ += other.identical_;
  max_ = std::max(max_, other.max_);
}

DeterminismStats::Summary DeterminismStats::Summarize() const {
  Summary summary{.count = identical_ + different_, .identical = identical_, .max = max_};
  if (summary.count == 0) return summary;
  std::vector<double> sorted = samples_;
  std::sort(sorted.begin(), sorted.end());
  // Value number floor(q * n) of all n, of which the identical ones are the smallest.
  const auto quantile = [&](double q) {
    const auto n = static_cast<double>(static_cast<size_t>(identical_) + sorted.size());
    const auto index = std::min(static_cast<int64_t>(q * n), static_cast<int64_t>(n) - 1);
    return index < identical_ ? 0 : sorted[static_cast<size_t>(index - identical_)];
  };
  summary.p50 = quantile(0.5);
  summary.p90 = quantile(0.9);
  summary.p99 = quantile(0.99);
  summary.p999 = quantile(0.999);
  double sum = 0;
  for (const double sample : sorted) sum += sample;
  summary.mean = sum / static_cast<double>(static_cast<size_t>(identical_) + sorted.size());
  return summary;
}

std::string DeterminismStats::ToString() const {
  const Summary s = Summarize();
  return absl::StrFormat(
      "%d comparisons, %d identical (%.1f%%), mean %.3g, p50 %.3g, p90 %.3g, p99 %.3g, p99.9 %.3g, "
      "max %.3g",
      s.count, s.identical,
      s.count == 0 ? 100.0
                   : 100.0 * static_cast<double>(s.identical) / static_cast<double>(s.count),
      s.mean, s.p50, s.p90, s.p99, s.p999, s.max);
}

}  // namespace muster
