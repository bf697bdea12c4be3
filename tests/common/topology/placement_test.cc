#include "common/topology/placement.h"

#include <algorithm>
#include <map>
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

TEST(PlacementTest, LeavesLargerNodesWholeForOthers) {
  const auto workers = Cluster({8, 3, 4, 2});
  auto placement = PlaceRanks(Topology({.world_size = 2, .tp = 2}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers), ElementsAre("w1.0", "w1.1"));
  placement = PlaceRanks(Topology({.world_size = 10, .tp = 2}), workers);
  ASSERT_TRUE(placement.ok());
  EXPECT_THAT(Names(*placement, workers), ElementsAre("w0.0", "w0.1", "w0.2", "w0.3", "w0.4",
                                                      "w0.5", "w0.6", "w0.7", "w1.0", "w1.1"));
}

// Random clusters of uneven nodes, some of whose workers are busy, against what any placement can
// reach at best.
TEST(PlacementTest, NoPlacementSplitsFewerTensorGroupsOrUsesFewerNodes) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  int num_split = 0, num_whole = 0;
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " case " << i);
    std::vector<int> devices;
    for (uint64_t n = 1 + random() % 8; n > 0; --n) devices.push_back(1 + random() % 8);
    std::vector<PlacementWorker> workers = Cluster(devices);
    std::erase_if(workers, [&](const PlacementWorker&) { return random() % 4 == 0; });  // busy
    const int tp = 1 << random() % 4;
    const int most = static_cast<int>(workers.size()) / tp;
    if (most == 0) continue;
    const int num_groups = 1 + static_cast<int>(random() % most);
    const RankTopology topology = Topology({.world_size = num_groups * tp, .tp = tp});
    const auto placement = PlaceRanks(topology, workers);
    ASSERT_TRUE(placement.ok());

    std::map<std::string, int> free_of_node;
    for (const auto& worker : workers) ++free_of_node[worker.node];
    std::vector<int> room;
    int total = 0;
    for (const auto& [node, count] : free_of_node) {
      room.push_back(count / tp);
      total += count / tp;
    }
    std::set<size_t> used(placement->worker_of_rank.begin(), placement->worker_of_rank.end());
    ASSERT_EQ(used.size(), placement->worker_of_rank.size());  // a worker, a rank
    const auto node_of = [&](int rank) { return workers[placement->worker_of_rank[rank]].node; };
    int split = 0;
    std::set<std::string> nodes;
    std::string before;
    for (const auto& group : topology.groups().at("tp")) {
      std::set<std::string> spanned;
      for (const int rank : group) spanned.insert(node_of(rank));
      nodes.insert(spanned.begin(), spanned.end());
      if (spanned.size() > 1) {
        ++split;
        continue;
      }
      // Rank order is node order, and device order on a node.
      EXPECT_FALSE(split == 0 && NaturalLess(*spanned.begin(), before));
      before = *spanned.begin();
      for (size_t k = 1; k < group.size(); ++k) {
        EXPECT_LT(workers[placement->worker_of_rank[group[k - 1]]].device_index,
                  workers[placement->worker_of_rank[group[k]]].device_index);
      }
    }
    // A node holds at most floor(free / tp) whole groups, so this is the least possible.
    EXPECT_EQ(placement->num_split_tensor_groups, std::max(0, num_groups - total));
    EXPECT_LE(split, placement->num_split_tensor_groups);
    if (num_groups > total) {
      ++num_split;
      continue;
    }
    ++num_whole;
    std::sort(room.rbegin(), room.rend());
    size_t fewest = 0;
    for (int held = 0; held < num_groups; held += room[fewest++]) {
    }
    EXPECT_EQ(nodes.size(), fewest);
  }
  EXPECT_GT(num_split, 100);
  EXPECT_GT(num_whole, 100);
}

TEST(PlacementTest, PipelineNeighboursShareANodeOrAreAsNearAsRankOrderAllows) {
  // tp=2, pp=4, dp=1 on nodes of 4: stages 0 and 1 share a node, 2 and 3 the next.
  auto workers = Cluster({4, 4});
  const RankTopology line = Topology({.world_size = 8, .tp = 2, .pp = 4});
  auto placement = PlaceRanks(line, workers);
  ASSERT_TRUE(placement.ok());
  for (const auto& group : line.groups().at("pp")) {
    std::vector<std::string> nodes;
    for (const int rank : group) nodes.push_back(workers[placement->worker_of_rank[rank]].node);
    EXPECT_THAT(nodes, ElementsAre("node0", "node0", "node1", "node1"));
  }
  // With full nodes a stage is d ranks away, and so at most ceil(d / 8) nodes.
  workers = Cluster(std::vector<int>(16, 8));
  const RankTopology grid = Topology({.world_size = 128, .tp = 4, .pp = 4});
  placement = PlaceRanks(grid, workers);
  ASSERT_TRUE(placement.ok());
  for (const auto& group : grid.groups().at("pp")) {
    for (size_t i = 1; i < group.size(); ++i) {
      const size_t a = placement->worker_of_rank[group[i - 1]] / 8;
      const size_t b = placement->worker_of_rank[group[i]] / 8;
      EXPECT_LE(b - a, static_cast<size_t>(group[i] - group[i - 1] + 7) / 8);
    }
  }
}

TEST(PlacementTest, SixteenThousandRanksArePlacedWhole) {
  std::vector<int> devices(2200, 8);
  for (size_t i = 0; i < devices.size(); i += 10) devices[i] = 7;
  const auto placement =
      PlaceRanks(Topology({.world_size = 16'384, .tp = 4, .pp = 8}), Cluster(devices));
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->num_split_tensor_groups, 0);
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
