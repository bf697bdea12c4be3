#include "common/topology/placement.h"

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<PlacementWorker> Cluster(const std::vector<int>& devices_of_node) {
  std::vector<PlacementWorker> workers;
  for (size_t node = 0; node < devices_of_node.size(); ++node) {
    for (int device = 0; device < devices_of_node[node]; ++device) {
      workers.push_back({absl::StrCat("w", node, ".", device), absl::StrCat("node", node), device});
    }
  }
  return workers;
}

std::vector<std::string> Names(const Placement& placement,
                               const std::vector<PlacementWorker>& workers) {
  std::vector<std::string> names;
  for (size_t worker : placement.worker_of_rank) names.push_back(workers[worker].name);
  return names;
}

RankTopology Topology(const TopologySpec& spec) { return *RankTopology::Create(spec); }

TEST(PlacementTest, NeighboursInRankOrderGetNeighbouringDevices) {
  const auto workers = Cluster({4, 4});
  auto placement = PlaceRanks(Topology({.world_size = 8, .tp = 2, .pp = 2}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers),
              ElementsAre("w0.0", "w0.1", "w0.2", "w0.3", "w1.0", "w1.1", "w1.2", "w1.3"));
  EXPECT_EQ(placement->num_split_tensor_groups, 0);
}

TEST(PlacementTest, ATensorGroupDoesNotSpanNodesWhenThereIsRoom) {
  const auto workers = Cluster({3, 3, 2});
  auto placement = PlaceRanks(Topology({.world_size = 6, .tp = 2}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers),
              ElementsAre("w0.0", "w0.1", "w1.0", "w1.1", "w2.0", "w2.1"));
  EXPECT_EQ(placement->num_split_tensor_groups, 0);
}

TEST(PlacementTest, SplitsAsFewTensorGroupsAsItMust) {
  const auto workers = Cluster({3, 3});
  auto placement = PlaceRanks(Topology({.world_size = 6, .tp = 2}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers),
              ElementsAre("w0.0", "w0.1", "w1.0", "w1.1", "w0.2", "w1.2"));
  EXPECT_EQ(placement->num_split_tensor_groups, 1);
}

TEST(PlacementTest, UsesTheFewestNodes) {
  const auto workers = Cluster({2, 8, 2, 4});
  auto placement = PlaceRanks(Topology({.world_size = 8, .tp = 4}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers),
              ElementsAre("w1.0", "w1.1", "w1.2", "w1.3", "w1.4", "w1.5", "w1.6", "w1.7"));
}

TEST(PlacementTest, TensorGroupsStayTogetherInAnyOrderString) {
  const auto workers = Cluster({2, 2});
  auto placement =
      PlaceRanks(Topology({.world_size = 4, .tp = 2, .order = "dp-tp-cp-ep-pp"}), workers);
  ASSERT_TRUE(placement.ok());
  // tp groups are [0,2] and [1,3].
  EXPECT_THAT(Names(*placement, workers), ElementsAre("w0.0", "w1.0", "w0.1", "w1.1"));
}

TEST(PlacementTest, TooFewWorkersSaysWhatIsMissing) {
  auto placement = PlaceRanks(Topology({.world_size = 8}), Cluster({3, 2}));
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(placement.status().message()),
              HasSubstr("the job needs 8 workers; 5 are free"));
}

TEST(PlacementTest, TheOrderOfTheListDoesNotMatter) {
  const uint64_t seed = 3;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " case " << i);
    std::vector<int> devices;
    for (uint64_t n = 1 + random() % 12; n > 0; --n) devices.push_back(1 + random() % 8);
    std::vector<PlacementWorker> workers = Cluster(devices);
    const int tp = 1 << random() % 3;
    const int world = static_cast<int>(workers.size()) / tp * tp;
    if (world == 0) continue;
    const RankTopology topology = Topology({.world_size = world, .tp = tp});
    auto first = PlaceRanks(topology, workers);
    ASSERT_TRUE(first.ok());
    const auto names = Names(*first, workers);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), static_cast<size_t>(world));
    std::shuffle(workers.begin(), workers.end(), random);
    auto second = PlaceRanks(topology, workers);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(Names(*second, workers), names);
  }
}

TEST(PlacementTest, NaturalOrder) {
  EXPECT_TRUE(NaturalLess("node2", "node10"));
  EXPECT_FALSE(NaturalLess("node10", "node2"));
  EXPECT_TRUE(NaturalLess("a9-x", "a10-b"));
  EXPECT_TRUE(NaturalLess("node", "node1"));
  EXPECT_FALSE(NaturalLess("n1", "n1"));
  EXPECT_NE(NaturalLess("n01", "n1"), NaturalLess("n1", "n01"));
}

}  // namespace
}  // namespace muster
