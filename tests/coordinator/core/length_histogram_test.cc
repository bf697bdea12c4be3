#include "coordinator/core/length_histogram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace muster {
namespace {

TEST(LengthHistogramTest, AQuantileIsNeverTooLowAndAtMost9PercentTooHigh) {
  const absl::Duration lengths[] = {absl::Milliseconds(1), absl::Milliseconds(17),
                                    absl::Milliseconds(512), absl::Seconds(3), absl::Hours(2)};
  for (const absl::Duration length : lengths) {
    LengthHistogram histogram;
    histogram.Add(length);
    EXPECT_GE(histogram.Quantile(0.99), length - absl::Nanoseconds(2));
    EXPECT_LE(histogram.Quantile(0.99), 1.091 * length);
  }
}

TEST(LengthHistogramTest, OfFewTheLongestCountsOfManyAnOutlierDoesNot) {
  LengthHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.99), absl::ZeroDuration());
  histogram.Add(absl::Seconds(10));
  for (int i = 0; i < 99; ++i) histogram.Add(absl::Milliseconds(10));
  EXPECT_LE(histogram.Quantile(0.99), absl::Milliseconds(11));
  EXPECT_GE(histogram.Quantile(1.0), absl::Seconds(10));
  histogram.Add(absl::Seconds(10));
  EXPECT_GE(histogram.Quantile(0.99), absl::Seconds(10));  // 2 of 101
}

TEST(LengthHistogramTest, OldLengthsFade) {
  LengthHistogram histogram;
  for (int i = 0; i < 2000; ++i) histogram.Add(absl::Seconds(10));
  for (int i = 0; i < 8000; ++i) histogram.Add(absl::Milliseconds(10));
  EXPECT_LE(histogram.count(), LengthHistogram::kMaxCount);
  EXPECT_LE(histogram.Quantile(0.99), absl::Milliseconds(11));
}

TEST(LengthHistogramTest, StrangeLengthsAreCounted) {
  LengthHistogram histogram;
  histogram.Add(absl::Seconds(-4));
  EXPECT_LE(histogram.Quantile(1), absl::Milliseconds(1));
  histogram.Add(absl::InfiniteDuration());
  EXPECT_GE(histogram.Quantile(1), absl::Hours(4));
}

TEST(LengthHistogramTest, NumbersGoThereAndBackAndBadOnesAreRefused) {
  LengthHistogram before, after;
  for (int i = 0; i < 500; ++i) before.Add(absl::Milliseconds(10 + i % 7));
  ASSERT_TRUE(after.Restore(before.Numbers()));
  EXPECT_EQ(after, before);
  ASSERT_TRUE(after.Restore({}));
  EXPECT_EQ(after.count(), 0);
  const std::vector<double> bad[] = {{1},       {-1, 2},        {192, 1}, {3, 0}, {std::nan(""), 1},
                                     {3, 2000}, {1, 1024, 2, 1}};
  for (const auto& numbers : bad) EXPECT_FALSE(after.Restore(numbers));
}

}  // namespace
}  // namespace muster
