#include "common/topology/rank_topology.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

int ToInt(absl::string_view text) {
  int value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << text;
  return value;
}

TopologySpec ParseSpec(const std::string& text) {
  TopologySpec spec;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(word, '=');
    if (pair.size() != 2) continue;  // the id
    const std::string& key = pair[0];
    if (key == "world_size") spec.world_size = ToInt(pair[1]);
    if (key == "tp") spec.tp = ToInt(pair[1]);
    if (key == "cp") spec.cp = ToInt(pair[1]);
    if (key == "pp") spec.pp = ToInt(pair[1]);
    if (key == "ep") spec.ep = ToInt(pair[1]);
    if (key == "etp") spec.etp = ToInt(pair[1]);
    if (key == "instances") spec.num_distributed_optimizer_instances = ToInt(pair[1]);
    if (key == "order") spec.order = pair[1];
    if (key == "hcp") {
      for (const std::string& size : std::vector<std::string>(absl::StrSplit(pair[1], ','))) {
        spec.hierarchical_cp.push_back(ToInt(size));
      }
    }
  }
  return spec;
}

GroupTable ParseGroups(const std::string& text) {
  GroupTable table;
  for (absl::string_view list : absl::StrSplit(text, ']', absl::SkipWhitespace())) {
    std::vector<int>& group = table.emplace_back();
    for (absl::string_view item : absl::StrSplit(list.substr(list.find('[') + 1), ',')) {
      const std::vector<std::string> ends = absl::StrSplit(item, '-');
      for (int rank = ToInt(ends.front()); rank <= ToInt(ends.back()); ++rank) {
        group.push_back(rank);
      }
    }
  }
  return table;
}

TEST(RankTopologyTest, GoldenGroupsG1_1ToG1_12) {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/golden/rank_groups.txt");
  ASSERT_TRUE(file) << "golden file is missing";
  std::string line, header;
  std::optional<RankTopology> topology;
  int num_blocks = 0, num_tables = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == 'G') {
      header = line;
      auto created = RankTopology::Create(ParseSpec(line));
      ASSERT_TRUE(created.ok()) << line << ": " << created.status();
      topology = *created;
      ++num_blocks;
      continue;
    }
    if (line == "----") continue;
    SCOPED_TRACE(header + " / " + line);
    const std::string name = line.substr(0, line.find(' '));
    const GroupTable expected = ParseGroups(line.substr(name.size()));
    ++num_tables;
    if (name.rfind("hybrid_", 0) == 0) {
      auto hybrid = topology->HybridDpCpGroups();
      ASSERT_TRUE(hybrid.ok());
      EXPECT_EQ(hybrid->size(), 2u);
      EXPECT_EQ(hybrid->at(ToInt(name.substr(7))), expected);
      continue;
    }
    ASSERT_TRUE(topology->groups().contains(name));
    EXPECT_EQ(topology->groups().at(name), expected);
  }
  EXPECT_EQ(num_blocks, 14);
  EXPECT_EQ(num_tables, 101);
}

TEST(RankTopologyTest, ErrorsG1_13) {
  struct Row {
    const char* name;
    const char* spec;
    const char* message;
  };
  const Row rows[] = {
      {"W8 tp3", "world_size=8 tp=3",
       "world_size=8 must be a multiple of "
       "tensor_model_parallel_size=3"},
      {"W8 ep3", "world_size=8 ep=3", "expert_model_parallel_size=3"},
      {"pp before dp, edp not dp", "world_size=16 tp=2 pp=2 ep=4 etp=1 order=tp-cp-ep-pp-dp",
       "expert data parallel size 2 must then equal the data parallel size 4"},
      {"W8 n=3", "world_size=8 instances=3", "num_distributed_optimizer_instances=3 must divide"},
      {"order without dp", "world_size=8 tp=2 order=tp-cp-ep-pp", "leaves out dp"},
      {"unknown axis", "world_size=8 order=tp-cp-xx-dp-pp", "\"xx\" is not an axis"},
      {"empty order", "world_size=8 order=", "\"\" is not an axis"},
      {"repeated axis", "world_size=8 order=tp-tp-cp-ep-dp-pp", "names tp twice"},
      {"hierarchy", "world_size=8 cp=4 hcp=2,3", "product context_parallel_size=4, not 6"},
      {"zero", "world_size=8 tp=0", "tensor_model_parallel_size=0 must be at least 1"},
      {"negative world", "world_size=-1", "world_size=-1 must be at least 1"},
      {"upper case does not end in pp", "world_size=16 tp=2 pp=2 ep=4 etp=1 order=TP-CP-EP-DP-PP",
       "does not end in pp"},
      {"different pp groups", "world_size=8 cp=2 pp=2 ep=2 etp=1 order=tp-cp-pp-ep-dp",
       "different pipeline"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    auto topology = RankTopology::Create(ParseSpec(row.spec));
    ASSERT_FALSE(topology.ok());
    EXPECT_EQ(topology.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(topology.status().message()), HasSubstr(row.message));
  }
  TopologySpec virtual_without_pipeline;
  virtual_without_pipeline.virtual_pp = 2;
  EXPECT_THAT(std::string(RankTopology::Create(virtual_without_pipeline).status().message()),
              HasSubstr("needs pipeline_model_parallel_size above 1"));
}

TEST(RankTopologyTest, AcceptedOrdersG1_13) {
  EXPECT_TRUE(RankTopology::Create(ParseSpec("world_size=8 tp=2 order=tp-ep-dp-pp")).ok());
  auto upper = RankTopology::Create(ParseSpec("world_size=8 tp=2 pp=2 order=TP-CP-EP-DP-PP"));
  auto lower = RankTopology::Create(ParseSpec("world_size=8 tp=2 pp=2"));
  ASSERT_TRUE(upper.ok() && lower.ok());
  EXPECT_EQ(upper->groups(), lower->groups());
}

TEST(RankTopologyTest, HybridGroupsNeedAnEvenSize) {
  EXPECT_FALSE(RankTopology::Create(ParseSpec("world_size=9"))->HybridDpCpGroups().ok());
  auto twelve = RankTopology::Create(ParseSpec("world_size=12"))->HybridDpCpGroups();
  ASSERT_TRUE(twelve.ok());
  EXPECT_EQ(twelve->size(), 2u);  // 2 and 4
  EXPECT_EQ(twelve->at(4), (GroupTable{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
  auto six = RankTopology::Create(ParseSpec("world_size=6"))->HybridDpCpGroups();
  ASSERT_TRUE(six.ok());
  EXPECT_EQ(six->size(), 1u);
}

// ---- properties over random layouts

std::vector<TopologySpec> RandomSpecs(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  auto pick = [&random](std::initializer_list<int> values) {
    return *(values.begin() + random() % values.size());
  };
  std::vector<TopologySpec> specs;
  while (static_cast<int>(specs.size()) < count) {
    TopologySpec spec;
    spec.tp = pick({1, 2, 3, 4});
    spec.cp = pick({1, 1, 2, 3});
    spec.pp = pick({1, 2, 3, 4});
    spec.ep = pick({1, 1, 2, 4});
    spec.etp = pick({0, 1, 2});
    spec.world_size = spec.tp * spec.cp * spec.pp * pick({1, 2, 3, 4, 8});
    std::vector<std::string> axes = {"tp", "cp", "ep", "dp", "pp"};
    std::shuffle(axes.begin(), axes.end(), random);
    spec.order = axes[0] + "-" + axes[1] + "-" + axes[2] + "-" + axes[3] + "-" + axes[4];
    if (RankTopology::Create(spec).ok()) specs.push_back(spec);
  }
  return specs;
}

constexpr uint64_t kSeed = 20240711;

TEST(RankTopologyTest, RankToCoordinatesToRank) {
  for (const TopologySpec& spec : RandomSpecs(kSeed, 200)) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " W" << spec.world_size << " tp"
                                    << spec.tp << " cp" << spec.cp << " pp" << spec.pp << " ep"
                                    << spec.ep << " etp" << spec.etp << " " << spec.order);
    const RankTopology topology = *RankTopology::Create(spec);
    EXPECT_EQ(topology.tp() * topology.cp() * topology.pp() * topology.dp(), spec.world_size);
    EXPECT_EQ(topology.etp() * topology.ep() * topology.pp() * topology.edp(), spec.world_size);
    for (int rank = 0; rank < spec.world_size; ++rank) {
      const RankCoordinates where = topology.Coordinates(rank);
      EXPECT_EQ(topology.Rank(where), rank);
      // The coordinate on an axis is the position in that axis's group.
      auto position = [&](const char* name) {
        const std::vector<int> group = topology.GroupOf(name, rank);
        return std::find(group.begin(), group.end(), rank) - group.begin();
      };
      EXPECT_EQ(position("tp"), where.tp);
      EXPECT_EQ(position("cp"), where.cp);
      EXPECT_EQ(position("dp"), where.dp);
      EXPECT_EQ(position("pp"), where.pp);
      EXPECT_EQ(position("ep"), where.ep);
      EXPECT_EQ(position("expert_tp"), where.expert_tp);
      EXPECT_EQ(position("expert_dp"), where.expert_dp);
    }
  }
}

TEST(RankTopologyTest, GroupsPartitionTheWorld) {
  for (const TopologySpec& spec : RandomSpecs(kSeed + 1, 200)) {
    SCOPED_TRACE(testing::Message()
                 << "seed " << kSeed + 1 << " W" << spec.world_size << " " << spec.order);
    const RankTopology topology = *RankTopology::Create(spec);
    for (const auto& [name, table] : topology.groups()) {
      SCOPED_TRACE(name);
      const bool partial = name == "embedding" || name == "position_embedding";
      std::set<int> seen;
      size_t num_members = 0;
      for (const std::vector<int>& group : table) {
        num_members += group.size();
        seen.insert(group.begin(), group.end());
        if (!partial) {
          EXPECT_EQ(group.size(), table[0].size());
        }
      }
      EXPECT_EQ(seen.size(), num_members) << "no rank is in two groups of a kind";
      EXPECT_EQ(*seen.rbegin() < spec.world_size && *seen.begin() >= 0, true);
      if (!partial) {
        EXPECT_EQ(num_members, static_cast<size_t>(spec.world_size));
      }
    }
    for (int rank = 0; rank < spec.world_size; ++rank) {
      const int stage = topology.Coordinates(rank).pp;
      EXPECT_EQ(topology.GroupOf("position_embedding", rank).empty(), stage != 0);
      EXPECT_EQ(topology.GroupOf("embedding", rank).empty(),
                stage != 0 && stage != topology.pp() - 1);
    }
  }
}

// Members of a group are those ranks whose coordinates agree on every axis outside it: a second,
// slow way to the same tables.
TEST(RankTopologyTest, GroupsAreTheRanksThatAgreeOnTheOtherAxes) {
  for (const TopologySpec& spec : RandomSpecs(kSeed + 2, 50)) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed + 2 << " " << spec.order);
    const RankTopology topology = *RankTopology::Create(spec);
    for (int a = 0; a < spec.world_size; ++a) {
      const RankCoordinates x = topology.Coordinates(a);
      std::set<int> tp_cp, dp_cp, tp_pp, tp_ep, tp_ep_pp;
      for (int b = 0; b < spec.world_size; ++b) {
        const RankCoordinates y = topology.Coordinates(b);
        if (x.dp == y.dp && x.pp == y.pp) tp_cp.insert(b);
        if (x.tp == y.tp && x.pp == y.pp) dp_cp.insert(b);
        if (x.dp == y.dp && x.cp == y.cp) tp_pp.insert(b);
        if (x.expert_dp == y.expert_dp && x.pp == y.pp) tp_ep.insert(b);
        if (x.expert_dp == y.expert_dp) tp_ep_pp.insert(b);
      }
      auto members = [&](const char* name) {
        const std::vector<int> group = topology.GroupOf(name, a);
        return std::set<int>(group.begin(), group.end());
      };
      EXPECT_EQ(members("tp_cp"), tp_cp);
      EXPECT_EQ(members("dp_cp"), dp_cp);
      EXPECT_EQ(members("tp_pp"), tp_pp);
      EXPECT_EQ(members("tp_ep"), tp_ep);
      EXPECT_EQ(members("tp_ep_pp"), tp_ep_pp);
    }
  }
}

TEST(RankTopologyTest, LargeWorld) {
  auto topology =
      RankTopology::Create({.world_size = 16384, .tp = 8, .cp = 2, .pp = 16, .ep = 8, .etp = 1});
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->dp(), 64);
  EXPECT_EQ(topology->GroupOf("tp", 16383).front(), 16376);
}

}  // namespace
}  // namespace muster
