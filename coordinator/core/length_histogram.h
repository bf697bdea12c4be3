// How long something took, as counts in buckets that grow by 9 % each, so that a percentile is
// known to 9 % (never too low) at a bounded size, whatever is seen. Old lengths fade: when
// kMaxCount were seen, all counts are halved. Pure.
//
// Invariant: the sum of all buckets is count() <= kMaxCount.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace muster {

class LengthHistogram {
 public:
  static constexpr int kMaxCount = 1024;

  void Add(absl::Duration length);
  // The length that `share` of all lengths do not exceed; of few of them, the longest. 0 when none
  // was seen.
  absl::Duration Quantile(double share) const;
  int64_t count() const { return count_; }

  // Bucket, count, bucket, count, ... of those that are not empty.
  std::vector<double> Numbers() const;
  // False, and empty, for numbers that are not such a list.
  bool Restore(const std::vector<double>& numbers);
  bool operator==(const LengthHistogram&) const = default;

 private:
  static constexpr int kPerOctave = 8;
  static constexpr int kNumBuckets = 24 * kPerOctave;  // 1 ms to 4.6 hours
  static int BucketOf(absl::Duration length);
  static absl::Duration UpperBound(int bucket);

  std::array<uint16_t, kNumBuckets> buckets_{};
  int64_t count_ = 0;
};

}  // namespace muster
