#include "coordinator/core/length_histogram.h"

#include <algorithm>
#include <cmath>

namespace muster {

// Bucket b holds lengths in (2^((b-1)/8), 2^(b/8)] ms; the first one all up to 1 ms.
int LengthHistogram::BucketOf(absl::Duration length) {
  const double ms = absl::ToDoubleMilliseconds(length);
  if (!(ms > 1)) return 0;
  const double bucket = std::ceil(std::log2(ms) * kPerOctave - 1e-9);
  return std::clamp(static_cast<int>(std::min<double>(bucket, kNumBuckets)), 0, kNumBuckets - 1);
}

absl::Duration LengthHistogram::UpperBound(int bucket) {
  return absl::Milliseconds(std::exp2(static_cast<double>(bucket) / kPerOctave));
}

void LengthHistogram::Add(absl::Duration length) {
  if (count_ == kMaxCount) {
    count_ = 0;
    for (uint16_t& bucket : buckets_) {
      bucket /= 2;
      count_ += bucket;
    }
  }
  ++buckets_[BucketOf(length)];
  ++count_;
}

absl::Duration LengthHistogram::Quantile(double share) const {
  if (count_ == 0) return absl::ZeroDuration();
  int64_t wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  wanted = std::clamp<int64_t>(wanted, 1, count_);
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    wanted -= buckets_[bucket];
    if (wanted <= 0) return UpperBound(bucket);
  }
  return UpperBound(kNumBuckets - 1);
}

std::vector<double> LengthHistogram::Numbers() const {
  std::vector<double> numbers;
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    if (buckets_[bucket] == 0) continue;
    numbers.push_back(bucket);
    numbers.push_back(buckets_[bucket]);
  }
  return numbers;
}

bool LengthHistogram::Restore(const std::vector<double>& numbers) {
  *this = {};
  LengthHistogram restored;
  if (numbers.size() % 2 != 0) return false;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    const double bucket = numbers[i], count = numbers[i + 1];
    if (!(bucket >= 0 && bucket < kNumBuckets && count >= 1 && count <= kMaxCount)) return false;
    restored.buckets_[static_cast<int>(bucket)] = static_cast<uint16_t>(count);
    restored.count_ += static_cast<int64_t>(count);
  }
  if (restored.count_ > kMaxCount) return false;
  *this = restored;
  return true;
}

}  // namespace muster
