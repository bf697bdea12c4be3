// What MoE layers share with the training step.
#include "worker/parallel/expert_state.h"

#include <ATen/ATen.h>

#include "common/base/status.h"
#include "common/topology/rank_topology.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

using testing::DoubleNear;
using testing::Pair;
using testing::UnorderedElementsAre;

at::Tensor Floats(const std::vector<double>& values) { return at::tensor(values, at::kFloat); }

ExpertBias MakeBias(const std::vector<double>& counts) {
  return {.name = "router", .bias = at::zeros({4}), .counts = Floats(counts)};
}

// G14.4: counts 3 2 1 2 over two ranks.
TEST(ExpertStateTest, BiasesMoveTowardsEvenLoadByTheCountsOfAllRanks) {
  RunRanks(2, [](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create({.world_size = 2}));
    const int rank = world->rank();
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(topology, rank, std::move(world)));
    ExpertState state;
    state.AddBias(
        MakeBias(rank == 0 ? std::vector<double>{3, 0, 1, 1} : std::vector<double>{0, 2, 0, 1}));
    RETURN_IF_ERROR(state.PrepareBiases(parallel));
    EXPECT_TRUE(at::equal(state.biases()[0].bias, at::zeros({4}))) << "not committed yet";
    state.CommitBiases(1e-3);
    EXPECT_TRUE(at::allclose(state.biases()[0].bias, Floats({-1e-3, 0, 1e-3, 0})));
    state.CommitBiases(1e-3);
    EXPECT_TRUE(at::allclose(state.biases()[0].bias, Floats({-1e-3, 0, 1e-3, 0}))) << "once";
    return absl::OkStatus();
  });
}

TEST(ExpertStateTest, AStepBeginsWithoutCountsAndADroppedOneMovesNothing) {
  ExpertState state;
  state.AddBias(MakeBias({3, 2, 1, 2}));
  const auto global = state.AddGlobalCounts();
  global->sum = Floats({1, 1, 1, 1});
  global->microbatches = 2;
  const ParallelContext alone = ParallelContext::SingleProcess();
  ASSERT_TRUE(state.PrepareBiases(alone).ok());
  state.BeginStep();
  state.CommitBiases(1);
  EXPECT_TRUE(at::equal(state.biases()[0].bias, at::zeros({4})));
  EXPECT_TRUE(at::equal(state.biases()[0].counts, at::zeros({4})));
  EXPECT_EQ(global->microbatches, 0);
  EXPECT_FALSE(global->sum.defined());
}

// tp 2, dp 2, 2 microbatches, 2 MoE layers of which every rank logs one (two pipeline stages
// would).
TEST(ExpertStateTest, SideLossesAreSummedOrAveragedAsEachIsMeant) {
  RunRanks(4, [](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create({.world_size = 4, .tp = 2}));
    const int rank = world->rank();
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(topology, rank, std::move(world)));
    ExpertState state;
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const at::Tensor value = at::scalar_tensor(1.0 + rank + 10 * microbatch);
      state.LogSideLoss(SideLossKind::kLoadBalancing, value);
      state.LogSideLoss(SideLossKind::kGlobalLoadBalancing, value);
      if (rank == 3) state.LogSideLoss(SideLossKind::kZ, value);
    }
    // Both microbatches: 12 + 14 + 16 + 18 = 60.
    ASSIGN_OR_RETURN(const auto losses, state.ReduceSideLosses(parallel, at::kCPU, 2, 2));
    EXPECT_THAT(losses, UnorderedElementsAre(
                            Pair("load_balancing_loss", DoubleNear(60.0 / 2 / 4, 1e-12)),
                            Pair("global_load_balancing_loss", DoubleNear(60.0 / 4, 1e-12)),
                            Pair("z_loss", DoubleNear(18.0 / 4 / 4, 1e-12))));
    state.BeginStep();
    ASSIGN_OR_RETURN(const auto none, state.ReduceSideLosses(parallel, at::kCPU, 2, 2));
    EXPECT_TRUE(none.empty());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
