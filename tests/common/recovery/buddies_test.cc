#include "common/recovery/buddies.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(BuddiesTest, OneNodeHasNone) { EXPECT_THAT(BuddiesOf({"a", "a"}), ElementsAre(-1, -1)); }

TEST(BuddiesTest, NoRanksNoBuddies) { EXPECT_THAT(BuddiesOf({}), ElementsAre()); }

TEST(BuddiesTest, EqualNodesKeepEachOthersCopies) {
  EXPECT_THAT(BuddiesOf({"a", "a", "b", "b"}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(BuddiesOf({"a", "b", "a", "b"}), ElementsAre(1, 0, 3, 2));
  EXPECT_THAT(BuddiesOf({"a", "b", "c"}), ElementsAre(1, 2, 0));
}

TEST(BuddiesTest, ABigNodesCopiesAreSpreadOverTheOthers) {
  EXPECT_THAT(BuddiesOf({"a", "a", "a", "a", "a", "b", "c"}), ElementsAre(5, 6, 5, 6, 5, 0, 1));
}

TEST(BuddiesTest, RandomClustersAreEvenAndOnOtherNodes) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    const int num_ranks = 1 + static_cast<int>(random() % 40);
    const int num_nodes = 2 + static_cast<int>(random() % 6);
    std::vector<std::string> nodes;
    std::map<std::string, int> size;
    for (int r = 0; r < num_ranks; ++r) {
      nodes.push_back("n" + std::to_string(random() % num_nodes));
      ++size[nodes.back()];
    }
    if (size.size() < 2) continue;
    int largest = 0;
    for (const auto& [node, ranks] : size) largest = std::max(largest, ranks);

    const std::vector<int> buddies = BuddiesOf(nodes);
    ASSERT_EQ(buddies.size(), nodes.size());
    std::vector<int> kept(num_ranks);
    for (int r = 0; r < num_ranks; ++r) {
      ASSERT_GE(buddies[r], 0);
      ASSERT_NE(nodes[buddies[r]], nodes[r]);
      ++kept[buddies[r]];
    }
    const int others = num_ranks - largest;
    const int most = 2 * largest <= num_ranks ? 1 : (largest + others - 1) / others;
    EXPECT_LE(*std::max_element(kept.begin(), kept.end()), most);
  }
}

}  // namespace
}  // namespace muster
