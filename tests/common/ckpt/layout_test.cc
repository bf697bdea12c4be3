#include "common/ckpt/layout.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LayoutTest, Names) {
  EXPECT_EQ(CheckpointFolderName(100), "iter_0000100");
  EXPECT_EQ(CheckpointFolderName(123456789), "iter_123456789");
  EXPECT_EQ(AsideFolderName(100, 3), "iter_0000100.epoch_3.partial");
  EXPECT_EQ(ReplacedFolderName(100), "iter_0000100.replaced");
  EXPECT_EQ(ShardName(3), "shard_00003.safetensors");
  EXPECT_EQ(RankStateName(3), "rank_00003.json");
}

TEST(LayoutTest, OnlyWholeFoldersHaveAnIteration) {
  EXPECT_EQ(IterationOfFolder("iter_0000100"), 100);
  EXPECT_EQ(IterationOfFolder("iter_0000100.replaced"), 100);
  for (const char* name : {"iter_100", "iter_0000100.epoch_3.partial", "iter_000010x", "iter_",
                           "release", "xiter_0000100", "iter_99999999999999999999"}) {
    EXPECT_FALSE(IterationOfFolder(name).has_value()) << name;
  }
  EXPECT_TRUE(IsAsideFolder(AsideFolderName(5, 0)));
  EXPECT_FALSE(IsAsideFolder(CheckpointFolderName(5)));
}

TEST(LayoutTest, Tracker) {
  EXPECT_EQ(*FolderOfTracker(TrackerText(100)), "iter_0000100");
  EXPECT_EQ(*FolderOfTracker(" 7\n"), "iter_0000007");
  EXPECT_EQ(*FolderOfTracker("release\n"), "release");
  for (const char* text : {"", "abc", "-5", "1 2"}) {
    EXPECT_EQ(FolderOfTracker(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

// Saves every 100 iterations up to `last`; what is there afterwards.
std::set<int64_t> Remaining(int64_t last, const RetentionOptions& options) {
  std::set<int64_t> present;
  std::optional<int64_t> previous;
  for (int64_t iteration = 100; iteration <= last; iteration += 100) {
    present.insert(iteration);
    for (const int64_t doomed :
         CheckpointsToDelete({present.begin(), present.end()}, iteration, previous, options)) {
      present.erase(doomed);
    }
    previous = iteration;
  }
  return present;
}

// G11.1.
TEST(RetentionTest, Golden) {
  EXPECT_THAT(Remaining(600, {.save_retain_interval = 300}), ElementsAre(300, 600));
  EXPECT_THAT(Remaining(500, {.save_retain_interval = 300}), ElementsAre(300, 500));
}

TEST(RetentionTest, KeepLast) {
  EXPECT_THAT(Remaining(600, {.keep_last = 2}), ElementsAre(500, 600));
  EXPECT_THAT(Remaining(600, {.keep_last = 1}), ElementsAre(600));
  EXPECT_THAT(Remaining(700, {.save_retain_interval = 300, .keep_last = 2}),
              ElementsAre(300, 600, 700));
  EXPECT_THAT(Remaining(300, {}), ElementsAre(100, 200, 300));
}

TEST(RetentionTest, TheOneJustSavedStays) {
  // After a return to an older step, the one just saved is not the highest number.
  EXPECT_THAT(CheckpointsToDelete({100, 200, 300}, 100, 300, {.keep_last = 1}),
              ElementsAre(200, 300));
  EXPECT_THAT(CheckpointsToDelete({100}, 100, 100, {.save_retain_interval = 300}), ElementsAre());
}

}  // namespace
}  // namespace muster
