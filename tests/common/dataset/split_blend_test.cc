#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dataset/blend.h"
#include "common/dataset/split.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Boundaries(const SplitBounds& bounds, int64_t n) {
  std::vector<int64_t> result = {0};
  for (const auto& bound : bounds) result.push_back(SplitRange(*bound, n).second);
  return result;
}

// G10.4.
TEST(SplitTest, GoldenBounds) {
  auto bounds = ParseSplitBounds("969,30,1");
  ASSERT_TRUE(bounds.ok());
  EXPECT_DOUBLE_EQ((*bounds)[0]->second, 0.969);
  EXPECT_DOUBLE_EQ((*bounds)[1]->second, 0.999);
  EXPECT_DOUBLE_EQ((*bounds)[2]->second, 1.0);
  EXPECT_THAT(Boundaries(*bounds, 1000), ElementsAre(0, 969, 999, 1000));
  EXPECT_THAT(Boundaries(*bounds, 12345), ElementsAre(0, 11962, 12333, 12345));
  EXPECT_THAT(Boundaries(*bounds, 50), ElementsAre(0, 48, 50, 50));
}

TEST(SplitTest, ZeroWeightMeansNoDataset) {
  auto bounds = ParseSplitBounds("98,2");
  ASSERT_TRUE(bounds.ok());
  EXPECT_TRUE((*bounds)[1].has_value());
  EXPECT_FALSE((*bounds)[2].has_value());
}

TEST(SplitTest, HalvesRoundToEven) {
  EXPECT_EQ(SplitRange({0.0, 0.5}, 5).second, 2);
  EXPECT_EQ(SplitRange({0.0, 0.5}, 7).second, 4);
}

TEST(SplitTest, BadStringsAreNamed) {
  for (const char* text : {"", "a,b", "0,0,0", "1,2,3,4", "1.2.3,1,1"}) {
    auto bounds = ParseSplitBounds(text);
    EXPECT_EQ(bounds.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(bounds.status().ToString(), HasSubstr("data.split="));
  }
}

TEST(BlendTest, ListsWithAndWithoutWeights) {
  auto weighted = ParseBlendList({"3", "a", "1", "b"});
  ASSERT_TRUE(weighted.ok());
  EXPECT_THAT(weighted->prefixes, ElementsAre("a", "b"));
  EXPECT_THAT(*weighted->weights, ElementsAre(0.75, 0.25));
  EXPECT_FALSE(ParseBlendList({"a", "b"})->weights.has_value());
  EXPECT_FALSE(ParseBlendList({"1", "a", "2"})->weights.has_value());
  EXPECT_THAT(ParseBlendList({"0", "a", "1", "b"}).status().ToString(),
              HasSubstr("weight of a is 0"));
}

std::vector<int> Datasets(const BlendIndex& index) {
  return std::vector<int>(index.dataset.begin(), index.dataset.end());
}

TEST(BlendTest, GoldenGreedy) {
  auto index = GreedyBlend({0.7, 0.3}, 10);
  ASSERT_TRUE(index.ok());
  EXPECT_THAT(Datasets(*index), ElementsAre(0, 1, 0, 0, 1, 0, 0, 1, 0, 0));
  EXPECT_THAT(index->sample, ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6));
  EXPECT_THAT(Datasets(*GreedyBlend({0.5, 0.3, 0.2}, 10)),
              ElementsAre(0, 1, 2, 0, 1, 0, 2, 0, 1, 0));
  EXPECT_THAT(Datasets(*GreedyBlend({1. / 3, 1. / 3, 1. / 3}, 6)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(Datasets(*GreedyBlend({0.6, 0.4}, 7)), ElementsAre(0, 1, 0, 1, 0, 0, 1));
}

TEST(BlendTest, GoldenExhaustive) {
  EXPECT_THAT(Datasets(*ExhaustiveBlend({4, 2, 1})), ElementsAre(0, 1, 2, 0, 0, 1, 0));
  EXPECT_THAT(Datasets(*ExhaustiveBlend({3, 3})), ElementsAre(0, 1, 0, 1, 0, 1));
}

TEST(BlendTest, GoldenRequests) {
  EXPECT_EQ(BlendRequest(1000, 0.7), 704);
  EXPECT_EQ(BlendRequest(1000, 0.3), 302);
}

// 1 + 1e-16 is 1, so a sequential sum stays 1; a tree adds the small terms to each other first.
TEST(BlendTest, SumsOfEightTermsAndMoreAreTrees) {
  std::vector<double> weights(8, 1e-16);
  weights[0] = 1.0;
  EXPECT_LT(NormalizeWeights(weights)[0], 1.0);
  weights.pop_back();
  EXPECT_EQ(NormalizeWeights(weights)[0], 1.0);
}

TEST(BlendTest, BadWeightsAreRefused) {
  EXPECT_FALSE(GreedyBlend({0.5, 0.0}, 4).ok());
  EXPECT_FALSE(GreedyBlend({}, 4).ok());
  EXPECT_FALSE(ExhaustiveBlend({3, 0}).ok());
  EXPECT_FALSE(GreedyBlend(std::vector<double>(32767, 1.0), 4).ok());
}

}  // namespace
}  // namespace muster
