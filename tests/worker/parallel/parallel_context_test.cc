#include "worker/parallel/parallel_context.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

RankTopology Topology(const TopologySpec& spec) {
  absl::StatusOr<RankTopology> topology = RankTopology::Create(spec);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

TEST(ParallelContextTest, EveryGroupHasTheTopologysMembersAndWorks) {
  at::set_num_threads(1);
  const RankTopology topology = Topology({.world_size = 8, .tp = 2, .pp = 2});
  RunRanks(8, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(const ParallelContext context, ParallelContext::Create(topology, rank, world));
    EXPECT_EQ(context.coordinates().pp, topology.Coordinates(rank).pp);
    for (const auto& [name, table] : topology.groups()) {
      SCOPED_TRACE(name);
      const std::vector<int> members = topology.GroupOf(name, rank);
      if (members.empty()) continue;
      Communicator& group = context.Group(name);
      EXPECT_EQ(group.ranks(), members);
      at::Tensor mine = at::full({3}, rank, at::kLong);
      RETURN_IF_ERROR(group.AllReduce(mine, ReduceOp::kSum)->Wait());
      int64_t sum = 0;
      for (int member : members) sum += member;
      EXPECT_EQ(mine[0].item<int64_t>(), sum);
    }
    return absl::OkStatus();
  });
}

TEST(ParallelContextTest, SingleProcessHasEveryGroup) {
  const ParallelContext context = ParallelContext::SingleProcess();
  for (const char* name : {"tp", "pp", "dp", "dp_cp", "cp", "ep", "expert_dp", "tp_pp", "tp_ep_pp",
                           "embedding", "position_embedding"}) {
    EXPECT_EQ(context.Group(name).size(), 1) << name;
  }
}

TEST(ParallelContextTest, WorldMustFitTheTopology) {
  auto worlds = MakeThreadWorld(2);
  EXPECT_EQ(ParallelContext::Create(Topology({.world_size = 4}), 0, worlds[0]).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParallelContext::Create(Topology({.world_size = 2}), 0, worlds[1]).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
