#include "coordinator/core/rank_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "coordinator/core/types.h"

namespace muster {
namespace {

TEST(RankSetTest, RangesJoinAndSplit) {
  RankSet set;
  EXPECT_EQ(set.Text(), "");
  for (const int rank : {7, 0, 2, 1, 2}) set.Add(rank);
  EXPECT_EQ(set.Text(), "0-2,7");
  EXPECT_EQ(set.size(), 4);
  set.Remove(1);
  set.Remove(5);
  EXPECT_EQ(set.Text(), "0,2,7");
  EXPECT_EQ(set.Text(2), "0,2,...");
}

TEST(RankSetTest, BehavesAsASet) {
  const uint32_t seed = 5;
  std::mt19937 random(seed);
  RankSet set;
  std::set<int> plain;
  for (int i = 0; i < 3'000; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " step " << i);
    const int rank = static_cast<int>(random() % 64);
    if (random() % 2 == 0) {
      set.Add(rank);
      plain.insert(rank);
    } else {
      set.Remove(rank);
      plain.erase(rank);
    }
    ASSERT_EQ(set.size(), static_cast<int>(plain.size()));
    ASSERT_EQ(set.Contains(rank), plain.contains(rank));
    ASSERT_EQ(set.Text(100), CompressRanks({plain.begin(), plain.end()}, 100));
    std::vector<int> listed;
    set.ForEach([&](int r) {
      listed.push_back(r);
      return true;
    });
    ASSERT_EQ(listed, std::vector<int>(plain.begin(), plain.end()));
  }
}

TEST(RankSetTest, AJobOfEqualRanksIsOneRange) {
  RankSet set;
  for (int rank = 0; rank < 4096; ++rank) set.Add(rank);
  EXPECT_EQ(set.ranges().size(), 1u);
  EXPECT_EQ(set.Text(), "0-4095");
}

}  // namespace
}  // namespace muster
