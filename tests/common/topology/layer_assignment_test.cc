#include "common/topology/layer_assignment.h"

#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// "[0][6] / [1,2][7,8]": chunks left to right, ranks separated by " / ".
std::string Ids(const LayerTable& table) {
  std::vector<std::string> ranks;
  for (const auto& chunks : table) {
    std::string text;
    for (const ChunkLayers& chunk : chunks) {
      absl::StrAppend(&text, "[", absl::StrJoin(chunk.layers, ","), "]");
    }
    ranks.push_back(text);
  }
  return absl::StrJoin(ranks, " / ");
}

TEST(LayerAssignmentTest, LayerIdsG2_1) {
  struct Row {
    const char* name;
    LayerSplit split;
    const char* ids;
  };
  const Row rows[] = {
      {"L8 pp4", {.num_layers = 8, .pp = 4}, "[0,1] / [2,3] / [4,5] / [6,7]"},
      {"L16 pp4 v2",
       {.num_layers = 16, .pp = 4, .virtual_pp = 2},
       "[0,1][8,9] / [2,3][10,11] / [4,5][12,13] / [6,7][14,15]"},
      {"L16 pp2 v4",
       {.num_layers = 16, .pp = 2, .virtual_pp = 4},
       "[0,1][4,5][8,9][12,13] / [2,3][6,7][10,11][14,15]"},
      {"L10 pp4 first1 last1",
       {.num_layers = 10, .pp = 4, .first_stage_layers = 1, .last_stage_layers = 1},
       "[0] / [1,2,3,4] / [5,6,7,8] / [9]"},
      {"L14 pp4 last2",
       {.num_layers = 14, .pp = 4, .last_stage_layers = 2},
       "[0,1,2,3] / [4,5,6,7] / [8,9,10,11] / [12,13]"},
      {"L12 pp4 v2 first2 last2",
       {.num_layers = 12,
        .pp = 4,
        .virtual_pp = 2,
        .first_stage_layers = 2,
        .last_stage_layers = 2},
       "[0][6] / [1,2][7,8] / [3,4][9,10] / [5][11]"},
      {"L14 pp4 emb+loss",
       {.num_layers = 14, .pp = 4, .account_for_embedding = true, .account_for_loss = true},
       "[0,1,2] / [3,4,5,6] / [7,8,9,10] / [11,12,13]"},
      {"L14 pp4 v2 emb+loss",
       {.num_layers = 14,
        .pp = 4,
        .virtual_pp = 2,
        .account_for_embedding = true,
        .account_for_loss = true},
       "[0][7,8] / [1,2][9,10] / [3,4][11,12] / [5,6][13]"},
      {"L15 pp4 v2 emb",
       {.num_layers = 15, .pp = 4, .virtual_pp = 2, .account_for_embedding = true},
       "[0][7,8] / [1,2][9,10] / [3,4][11,12] / [5,6][13,14]"},
      {"L4 pp1", {.num_layers = 4}, "[0,1,2,3]"},
      {"L4 pp1 emb+loss",
       {.num_layers = 4, .account_for_embedding = true, .account_for_loss = true},
       "[0,1,2,3]"},
      {"L1 pp1 v3 emb+loss: a chunk each",
       {.num_layers = 1, .virtual_pp = 3, .account_for_embedding = true, .account_for_loss = true},
       "[][0][]"},
      {"L6 pp2 v2 first4 last2, no middle stage",
       {.num_layers = 6, .pp = 2, .virtual_pp = 2, .first_stage_layers = 4, .last_stage_layers = 2},
       "[0,1][3,4] / [2][5]"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("G2.1 ", row.name));
    auto table = AssignLayers(row.split);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(Ids(*table), row.ids);
    EXPECT_TRUE(table->front().front().embedding);
    EXPECT_TRUE(table->back().back().loss);
  }
}

TEST(LayerAssignmentTest, ErrorsG2_1) {
  struct Row {
    const char* name;
    LayerSplit split;
    const char* message;
  };
  const Row rows[] = {
      {"L10 pp4", {.num_layers = 10, .pp = 4}, "num_layers=10 must be a multiple"},
      {"L12 pp4 v2",
       {.num_layers = 12, .pp = 4, .virtual_pp = 2},
       "the 3 layers of pipeline rank 0 must be a multiple"},
      {"L10 pp4 first1 with emb",
       {.num_layers = 10, .pp = 4, .first_stage_layers = 1, .account_for_embedding = true},
       "do not go with account_for"},
      {"L12 pp4 v2 first3 last3",
       {.num_layers = 12,
        .pp = 4,
        .virtual_pp = 2,
        .first_stage_layers = 3,
        .last_stage_layers = 3},
       "the 3 layers of pipeline rank 0"},
      {"L6 pp4 first1",
       {.num_layers = 6, .pp = 4, .first_stage_layers = 1},
       "the 5 layers between"},
      {"lost layers, no middle stage",
       {.num_layers = 10, .pp = 2, .first_stage_layers = 2, .last_stage_layers = 2},
       "the 6 layers between"},
      {"more than there are",
       {.num_layers = 4, .pp = 3, .first_stage_layers = 3, .last_stage_layers = 3},
       "do not fit"},
      {"no layers", {.num_layers = 0}, "must be at least 1"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("G2.1 ", row.name));
    auto table = AssignLayers(row.split);
    ASSERT_FALSE(table.ok());
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(row.message));
  }
}

TEST(LayerAssignmentTest, LayoutG2_2) {
  auto table = AssignLayers({.num_layers = 14, .pp = 4, .layout = "Et|(tt|)*6tL"});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(Ids(*table), "[0][7,8] / [1,2][9,10] / [3,4][11,12] / [5,6][13]");
  auto counted = AssignLayers({.num_layers = 14,
                               .pp = 4,
                               .virtual_pp = 2,
                               .account_for_embedding = true,
                               .account_for_loss = true});
  ASSERT_TRUE(counted.ok());
  EXPECT_EQ(*table, *counted);
}

TEST(LayerAssignmentTest, LayoutG2_3) {
  auto empty_stage = AssignLayers({.num_layers = 6, .pp = 2, .layout = "E|(t|)*3,tt|tL"});
  ASSERT_TRUE(empty_stage.ok()) << empty_stage.status();
  EXPECT_EQ(Ids(*empty_stage), "[][1][3,4] / [0][2][5]");
  EXPECT_TRUE((*empty_stage)[0][0].embedding);
  EXPECT_TRUE((*empty_stage)[1][2].loss);

  auto mtp =
      AssignLayers({.num_layers = 8, .pp = 2, .layout = "Ettt|(tt|)*2,tmL", .mtp_num_layers = 1});
  ASSERT_TRUE(mtp.ok()) << mtp.status();
  EXPECT_EQ(Ids(*mtp), "[0,1,2][5,6] / [3,4][7]");
  EXPECT_EQ((*mtp)[1][1].num_mtp_layers, 1);
}

TEST(LayerAssignmentTest, LayoutErrorsG2_3) {
  struct Row {
    const char* layout;
    int64_t num_layers;
    const char* message;
  };
  const Row rows[] = {
      {"Et|tt|tL", 4, "has 3 stages"}, {"tE|tL", 2, "exactly one E"},
      {"Et|t", 2, "exactly one L"},    {"Et|tL", 3, "has 2 layers (t); model.num_layers is 3"},
      {"", 2, "has 1 stages"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat("G2.3 ", row.layout));
    auto table = AssignLayers({.num_layers = row.num_layers, .pp = 2, .layout = row.layout});
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(table.status().message()),
        HasSubstr(absl::StrCat("parallel.pipeline_model_parallel_layout=\"", row.layout, "\": ")));
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(row.message));
  }
}

TEST(LayerAssignmentTest, EachLayerIsInOneChunk) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  int num_good = 0;
  for (int i = 0; i < 20000; ++i) {
    LayerSplit split;
    split.num_layers = 1 + random() % 24;
    split.pp = 1 + random() % 5;
    split.virtual_pp = 1 + random() % 3;
    if (random() % 3 == 0) split.first_stage_layers = random() % 6;
    if (random() % 3 == 0) split.last_stage_layers = random() % 6;
    split.account_for_embedding = random() % 4 == 0;
    split.account_for_loss = random() % 4 == 0;
    auto table = AssignLayers(split);
    if (!table.ok()) continue;
    ++num_good;
    std::vector<int64_t> in_order, all(split.num_layers);
    for (int vp = 0; vp < split.virtual_pp; ++vp) {
      for (int rank = 0; rank < split.pp; ++rank) {
        const auto& layers = (*table)[rank][vp].layers;
        in_order.insert(in_order.end(), layers.begin(), layers.end());
      }
    }
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(in_order, all) << "seed " << seed << " case " << i << ": " << Ids(*table);
  }
  EXPECT_GT(num_good, 1000);
}

TEST(LayerAssignmentTest, VirtualStagesFromLayersPerStage) {
  EXPECT_EQ(*VirtualStagesFromLayersPerStage({.num_layers = 16, .pp = 4}, 2), 2);
  EXPECT_EQ(*VirtualStagesFromLayersPerStage({.num_layers = 16, .pp = 4}, 4), 1);
  EXPECT_EQ(
      *VirtualStagesFromLayersPerStage(
          {.num_layers = 14, .pp = 4, .account_for_embedding = true, .account_for_loss = true}, 2),
      2);
  EXPECT_FALSE(VirtualStagesFromLayersPerStage({.num_layers = 16, .pp = 4}, 3).ok());
  EXPECT_FALSE(VirtualStagesFromLayersPerStage({.num_layers = 16, .pp = 4}, 0).ok());
  EXPECT_FALSE(
      VirtualStagesFromLayersPerStage({.num_layers = 16, .pp = 4, .first_stage_layers = 4}, 2)
          .ok());
}

TEST(PadVocabSizeTest, RoundsUpToWholeRanks) {
  EXPECT_EQ(*PadVocabSize(50257, 128, 1), 50304);
  EXPECT_EQ(*PadVocabSize(50257, 128, 2), 50432);
  EXPECT_EQ(*PadVocabSize(256, 128, 2), 256);
  EXPECT_EQ(*PadVocabSize(257, 1, 1), 257);
  EXPECT_FALSE(PadVocabSize(0, 128, 1).ok());
  EXPECT_FALSE(PadVocabSize(100, 0, 1).ok());
  EXPECT_FALSE(PadVocabSize(100, 128, -1).ok());
  EXPECT_FALSE(PadVocabSize(std::numeric_limits<int64_t>::max(), 128, 1).ok());
}

}  // namespace
}  // namespace muster
