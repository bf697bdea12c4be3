#include "common/rerun/result_check.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace muster {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(RelativeDifferenceTest, ValuesG13_2) {
  struct Row {
    double a, b, expected;
  };
  // The table was made with fp32 losses: 1.001f.
  const Row rows[] = {
      {1, 1.001f, 0.00099954693},
      {0, 0, 0},
      {kNan, kNan, 0},
      {kNan, 1, kInf},
      {1, kNan, kInf},
      {kInf, kInf, 0},
      {kInf, 1, kInf},
      {1, -kInf, kInf},
      {0, 1, 2},
      {2, 4, 0.66666667},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G13.2 (" << row.a << ", " << row.b << ")");
    if (std::isfinite(row.expected)) {
      EXPECT_NEAR(RelativeDifference(row.a, row.b), row.expected, 1e-8 * row.expected);
    } else {
      EXPECT_EQ(RelativeDifference(row.a, row.b), row.expected);
    }
  }
}

// Where Megatron divides by zero (G13.2: (1, -1) is an error there) or returns NaN.
TEST(RelativeDifferenceTest, OppositeValuesAreInfinitelyFarApart) {
  EXPECT_EQ(RelativeDifference(1, -1), kInf);
  EXPECT_EQ(RelativeDifference(kInf, -kInf), kInf);
}

TEST(RelativeDifferenceTest, HugeValuesDoNotOverflow) {
  EXPECT_NEAR(RelativeDifference(1e308, 1.5e308), 0.4, 1e-12);
  EXPECT_EQ(RelativeDifference(1.5e308, -1.5e308), kInf);
  EXPECT_GT(RelativeDifference(1.5e308, -1.4e308), 10);
}

TEST(FaultOfTest, NamesNanAndInf) {
  EXPECT_EQ(FaultOf(1.5), ResultFault::kNone);
  EXPECT_EQ(FaultOf(-kInf), ResultFault::kInf);
  EXPECT_EQ(FaultOf(kNan), ResultFault::kNan);
}

TEST(SpikeDetectorTest, SequenceG13_2) {
  SCOPED_TRACE("G13.2 spiky, factor 10, 3 samples");
  SpikeDetector detector(3);
  auto spiky = [&](double value) { return detector.IsUnexpectedlyLarge(value, 10, "loss"); };
  EXPECT_FALSE(spiky(1));
  EXPECT_FALSE(spiky(3));
  EXPECT_FALSE(spiky(2));
  EXPECT_FALSE(spiky(29.9));
  EXPECT_TRUE(spiky(30));
  EXPECT_FALSE(spiky(kNan));
  EXPECT_FALSE(spiky(kInf));
  EXPECT_TRUE(spiky(-40));
  EXPECT_FALSE(spiky(29.9)) << "the maximum is frozen";
  EXPECT_EQ(detector.stats().at("loss"), (SpikeDetector::Stats{3, 3}));
}

TEST(SpikeDetectorTest, ContextsLearnApart) {
  SpikeDetector detector(1);
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(1, 10, "loss"));
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(1000, 10, "grad"));
  EXPECT_TRUE(detector.IsUnexpectedlyLarge(10, 10, "loss"));
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(kNan, 10, "new"));
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(5, 10, "new")) << "NaN taught it nothing";
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(70, 10, "loss", /*resample=*/true));
  EXPECT_FALSE(detector.IsUnexpectedlyLarge(600, 10, "loss"));
  EXPECT_TRUE(detector.IsUnexpectedlyLarge(700, 10, "loss"));
}

TEST(SpikeDetectorTest, SurvivesACheckpoint) {
  SpikeDetector detector(2);
  detector.IsUnexpectedlyLarge(4, 10, "loss");
  detector.IsUnexpectedlyLarge(2, 10, "loss");
  SpikeDetector resumed(2);
  resumed.Load(detector.stats());
  EXPECT_TRUE(resumed.IsUnexpectedlyLarge(40, 10, "loss"));
}

}  // namespace
}  // namespace muster
