// How far two runs of the same computation were apart, over many of them (reference 13.7,
// report_determinism_stats). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

class DeterminismStats {
 public:
  static constexpr size_t kMaxSamples = 100'000;  // of those that differ; the oldest go first

  // A RelativeDifference; 0: the runs were identical.
  void Record(double difference);
  void Merge(const DeterminismStats& other);

  struct Summary {
    int64_t count = 0, identical = 0;
    double mean = 0, p50 = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;  // over all, identical ones too
  };
  Summary Summarize() const;
  // "4 comparisons, 3 identical (75.0%), mean 1e-07, p50 0, p90 4e-07, ..."
  std::string ToString() const;

  int64_t identical() const { return identical_; }
  const std::vector<double>& samples() const { return samples_; }

 private:
  int64_t identical_ = 0, different_ = 0;
  double max_ = 0;
  std::vector<double> samples_;  // a ring once it is full
};

}  // namespace muster
