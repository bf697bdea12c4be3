// The small languages inside strings: blends, splits, pipeline layouts, and near names.
#include "absl/strings/str_join.h"
#include "common/spec/data_blend.h"
#include "common/spec/nearest_name.h"
#include "common/spec/pipeline_layout.h"
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

std::string Expanded(const std::string& layout) {
  const auto stages = ExpandPipelineLayout(layout);
  return stages.ok() ? absl::StrJoin(*stages, "|") : std::string(stages.status().message());
}

// Reference G2.2 and G2.3.
TEST(PipelineLayoutTest, RepetitionsAreWrittenOut) {
  EXPECT_EQ(Expanded("Et|(tt|)*6tL"), "Et|tt|tt|tt|tt|tt|tt|tL");
  EXPECT_EQ(Expanded("E|(t|)*3,tt|tL"), "E|t|t|t|tt|tL");
  EXPECT_EQ(Expanded("Ettt|(tt|)*2,tmL"), "Ettt|tt|tt|tmL");
  EXPECT_EQ(Expanded("Et*4||L"), "Etttt||L");
}

TEST(PipelineLayoutTest, AWrongLayoutIsRefusedWithTheReason) {
  const struct {
    const char* layout;
    int64_t layers, pp;
    const char* fragment;
  } rows[] = {
      {"Et|tt|tL", 4, 2, "has 3 stages"},
      {"tE|tL", 2, 2, "exactly one E"},
      {"Et|t", 2, 2, "exactly one L"},
      {"Et|tL", 3, 2, "has 2 layers (t); model.num_layers is 3"},
      {"Et|xL", 1, 2, "unknown letter 'x'"},
      {"E(t|tL", 2, 2, "not closed"},
      {"Et*|tL", 2, 2, "without a number"},
      {"Et|tmL", 2, 2, "has an m"},
      {"E(t(t)|)*2L", 2, 2, "unknown letter '('"},
      {"Et*99999999999999999999|L", 2, 2, "without a number"},
      {"Et*999999999|L", 2, 2, "too long"},
      {"", 2, 1, "exactly one E"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.layout);
    EXPECT_NE(PipelineLayoutProblem(row.layout, row.layers, row.pp).find(row.fragment),
              std::string::npos)
        << PipelineLayoutProblem(row.layout, row.layers, row.pp);
  }
  EXPECT_EQ(PipelineLayoutProblem("Et|(tt|)*6tL", 14, 4), "");
  EXPECT_EQ(PipelineLayoutProblem("E|(t|)*3,tt|tL", 6, 2), "");
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
