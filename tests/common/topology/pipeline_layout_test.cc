#include "common/topology/pipeline_layout.h"

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_EQ(Expanded("E(t*2|)*2L"), "Ett|tt|L");
  EXPECT_EQ(Expanded("Et*1,2|L"), "Etttttttttttt|L") << "commas mean nothing, even in a number";
}

TEST(PipelineLayoutTest, AWrongLayoutIsRefusedWithTheReason) {
  const struct {
    const char* layout;
    int64_t layers;
    int pp;
    const char* fragment;
  } rows[] = {
      {"Et|tt|tL", 4, 2, "has 3 stages"},
      {"tE|tL", 2, 2, "exactly one E"},
      {"Et|E|tL|", 2, 2, "exactly one E"},
      {"Et|t", 2, 2, "exactly one L"},
      {"Et|tLt", 3, 2, "exactly one L"},
      {"Et|tL", 3, 2, "has 2 layers (t); model.num_layers is 3"},
      {"Et|xL", 1, 2, "unknown letter 'x'"},
      {"Et)|L", 1, 2, "unknown letter ')'"},
      {"E(t|tL", 2, 2, "not closed"},
      {"E(t|)tL", 2, 2, "without a repeat"},
      {"Et*|tL", 2, 2, "after '*'"},
      {"Et|tmL", 2, 2, "(m); the model has 0"},
      {"E(t(t)|)*2L", 2, 2, "do not nest"},
      {"Et*99999999999999999999|L", 2, 2, "after '*'"},
      {"E(t*99999)*99999|L", 2, 2, "too long"},
      {"", 2, 1, "exactly one E"},
      {"|", 2, 2, "exactly one E"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.layout);
    const auto table = AssignByLayout(row.layout, {.num_layers = row.layers, .pp = row.pp});
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(row.fragment));
  }
}

TEST(PipelineLayoutTest, MultiTokenPredictionLayersComeLastAndTogether) {
  const LayoutNeeds needs = {.num_layers = 2, .mtp_num_layers = 2, .pp = 2};
  EXPECT_TRUE(AssignByLayout("Et|tmmL", needs).ok());
  EXPECT_TRUE(AssignByLayout("Et|t|mm|L", needs).ok()) << "the first rank's last chunk";
  const struct {
    const char* layout;
    const char* fragment;
  } rows[] = {
      {"Em|ttmL", "every m after every t"},
      {"Et|t|m|mL", "every m in one stage"},
      {"Ett|mm||L", "in a rank's last virtual stage"},
      {"Et|tmL", "has 1 multi-token prediction layers (m); the model has 2"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.layout);
    const auto table = AssignByLayout(row.layout, needs);
    ASSERT_FALSE(table.ok());
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(row.fragment));
  }
}

}  // namespace
}  // namespace muster
