// The small languages inside strings: blends, splits, pipeline layouts, and near names.
#include "absl/strings/str_join.h"
#include "common/spec/data_blend.h"
#include "common/spec/nearest_name.h"
#include "spec_fixture.h"

namespace muster {
namespace {

using Strings = std::vector<std::string>;

TEST(DataBlendTest, EveryOtherNumberIsAWeight) {
  const DataBlend blend = ParseBlend({"0.7", "a", "3", "b"});
  EXPECT_EQ(blend.weights, (std::vector<double>{0.7, 3}));
  EXPECT_EQ(blend.prefixes, (Strings{"a", "b"}));
}

TEST(DataBlendTest, PathsAloneHaveNoWeights) {
  EXPECT_TRUE(ParseBlend({"a", "b"}).weights.empty());
  EXPECT_EQ(ParseBlend({"a", "b", "c"}).prefixes, (Strings{"a", "b", "c"}));
  EXPECT_TRUE(ParseBlend({}).prefixes.empty());
}

TEST(DataSplitTest, SharesAreNormalisedAndMissingOnesAreZero) {
  const auto usual = ParseSplit("969, 30, 1");
  ASSERT_TRUE(usual.ok());
  EXPECT_DOUBLE_EQ((*usual)[0], 0.969);
  EXPECT_DOUBLE_EQ((*usual)[1], 0.030);
  EXPECT_DOUBLE_EQ((*usual)[2], 0.001);
  EXPECT_EQ((*ParseSplit("98,2"))[2], 0);
  EXPECT_FALSE(ParseSplit("1,-1,1").ok());
  EXPECT_FALSE(ParseSplit("nan,1").ok());
}

TEST(NearestNameTest, CountsEditsAndSwaps) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("hidden_size", "hiden_size"), 1);
  EXPECT_EQ(EditDistance("modle", "model"), 1);
  EXPECT_EQ(EditDistance("Micro-Batch-Size", "micro_batch_size"), 0);
}

TEST(NearestNameTest, NothingIsNearAStrangeName) {
  EXPECT_EQ(NearestName("zzzz", {"adam", "sgd"}), "");
  EXPECT_EQ(NearestName("tpu", {"cpu", "cuda"}), "cpu");
  EXPECT_EQ(NearestName("", {"a"}), "");
}

}  // namespace
}  // namespace muster
