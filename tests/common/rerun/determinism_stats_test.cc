#include "common/rerun/determinism_stats.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(DeterminismStatsTest, QuantilesCountIdenticalRunsToo) {
  DeterminismStats stats;
  for (int i = 0; i < 800; ++i) stats.Record(0);
  for (int i = 1; i <= 200; ++i) stats.Record(i);
  const auto summary = stats.Summarize();
  EXPECT_EQ(summary.count, 1000);
  EXPECT_EQ(summary.identical, 800);
  EXPECT_DOUBLE_EQ(summary.mean, 200 * 201 / 2 / 1000.0);
  EXPECT_EQ(summary.p50, 0);
  EXPECT_EQ(summary.p90, 101);
  EXPECT_EQ(summary.p99, 191);
  EXPECT_EQ(summary.p999, 200);
  EXPECT_EQ(summary.max, 200);
}

TEST(DeterminismStatsTest, KeepsTheNewestHundredThousandThatDiffer) {
  DeterminismStats stats;
  for (int i = 0; i < 100'000; ++i) stats.Record(7);
  for (int i = 0; i < 100'000; ++i) stats.Record(1);
  EXPECT_EQ(stats.samples().size(), DeterminismStats::kMaxSamples);
  EXPECT_EQ(stats.Summarize().count, 200'000);
  EXPECT_EQ(stats.Summarize().p999, 1);
  EXPECT_EQ(stats.Summarize().max, 7) << "of all that were recorded";
}

TEST(DeterminismStatsTest, MergesWhatOtherRanksSaw) {
  DeterminismStats a, b;
  a.Record(0);
  a.Record(0.5);
  b.Record(0);
  b.Record(2);
  a.Merge(b);
  EXPECT_EQ(
      a.ToString(),
      "4 comparisons, 2 identical (50.0%), mean 0.625, p50 0.5, p90 2, p99 2, p99.9 2, max 2");
  EXPECT_EQ(DeterminismStats().Summarize().count, 0);
}

}  // namespace
}  // namespace muster
