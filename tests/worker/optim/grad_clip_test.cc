#include "worker/optim/grad_clip.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

ParameterPtr Param(double grad) {
  auto p = std::make_shared<Parameter>();
  p->data = at::ones({1});
  p->main_grad = at::full({1}, grad);
  p->main_grad_is_zero = false;
  return p;
}

TEST(GradClipTest, NormOverTensorAndPipelineRanksCountsEachParameterOnce) {
  at::set_num_threads(1);
  absl::StatusOr<RankTopology> topology = RankTopology::Create({.world_size = 4, .tp = 2, .pp = 2});
  ASSERT_TRUE(topology.ok());
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const GradStatsGroups groups = GradStatsGroups::Of(parallel, false);
    const ParameterPtr sharded = Param(1 + world->rank());  // 1, 2, 3, 4
    sharded->tensor_model_parallel = true;
    const ParameterPtr replicated = Param(10 * (1 + parallel.coordinates().pp));  // once a stage
    std::vector<ParameterPtr> params = {sharded, replicated};
    if (parallel.coordinates().pp == 1) {
      params.push_back(Param(1000));  // the last stage's copy of the tied embedding
      params.back()->shared = true;
      params.back()->tensor_model_parallel = true;
    }
    ASSIGN_OR_RETURN(const GradStats stats, ComputeGradStats(WholeShards(params), 1.0, groups));
    EXPECT_DOUBLE_EQ(stats.norm, std::sqrt(1. + 4 + 9 + 16 + 100 + 400));
    EXPECT_FALSE(stats.found_inf);

    // What one rank finds, all know, even in a parameter that does not count.
    if (world->rank() == 3) replicated->main_grad.fill_(std::numeric_limits<float>::quiet_NaN());
    ASSIGN_OR_RETURN(const GradStats bad, ComputeGradStats(WholeShards(params), 1.0, groups));
    EXPECT_TRUE(bad.found_inf);

    if (world->rank() != 3) replicated->main_grad.zero_();
    ASSIGN_OR_RETURN(const int64_t zeros, CountGradZeros(WholeShards(params), 1.0, groups));
    EXPECT_EQ(zeros, 2);  // one a stage
    return absl::OkStatus();
  });
}

TEST(GradClipTest, KnownSquaresServeOnlyGradientsThatAreNotUnscaled) {
  const ParallelContext parallel = ParallelContext::SingleProcess();
  const GradStatsGroups groups = GradStatsGroups::Of(parallel, false);
  const ParameterPtr p = Param(2);
  p->main_grad_squares = 9.0;  // not what main_grad holds, to see which one is used
  EXPECT_EQ(ComputeGradStats(WholeShards({p}), 1.0, groups)->norm, 3.0);
  EXPECT_EQ(ComputeGradStats(WholeShards({p}), 0.5, groups)->norm, 1.0);
}

TEST(GradClipTest, ExpertsAreReducedOverTheirOwnGroup) {
  at::set_num_threads(1);
  absl::StatusOr<RankTopology> topology = RankTopology::Create({.world_size = 2, .ep = 2});
  ASSERT_TRUE(topology.ok()) << topology.status();
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const ParameterPtr dense = Param(3);  // equal on both data-parallel ranks: counted once
    const ParameterPtr expert = Param(4 + world->rank());
    expert->allreduce = false;
    ASSIGN_OR_RETURN(const GradStats stats, ComputeGradStats(WholeShards({dense, expert}), 1.0,
                                                             GradStatsGroups::Of(parallel, true)));
    EXPECT_DOUBLE_EQ(stats.norm, std::sqrt(9. + 16 + 25));
    // Infinity in one rank's expert: the others know.
    if (world->rank() == 1) expert->main_grad.fill_(std::numeric_limits<float>::infinity());
    ASSIGN_OR_RETURN(const GradStats bad, ComputeGradStats(WholeShards({dense, expert}), 1.0,
                                                           GradStatsGroups::Of(parallel, true)));
    EXPECT_TRUE(bad.found_inf);
    return absl::OkStatus();
  });
}

TEST(GradClipTest, DistributedOptimizersReduceOverTheirInstance) {
  at::set_num_threads(1);
  // Two instances of two ranks: each instance holds all shards once.
  absl::StatusOr<RankTopology> topology =
      RankTopology::Create({.world_size = 4, .num_distributed_optimizer_instances = 2});
  ASSERT_TRUE(topology.ok()) << topology.status();
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const int shard = parallel.Group("intra_dp_cp").rank();
    const ParameterPtr dense = Param(0), expert = Param(0);
    dense->data = dense->main_grad = at::tensor({3.0f, 4.0f});
    expert->data = expert->main_grad = at::tensor({12.0f, 0.0f});
    expert->allreduce = false;
    std::vector<OwnedShard> shards;
    for (const ParameterPtr& p : {dense, expert}) {
      const at::Tensor part = p->main_grad.narrow(0, shard, 1);
      shards.push_back(
          {.parameter = p, .in_param = {shard, shard + 1}, .data = part, .grad = part});
    }
    const GradStatsGroups groups = GradStatsGroups::Of(parallel, true, true);
    ASSIGN_OR_RETURN(const GradStats stats, ComputeGradStats(shards, 1.0, groups));
    EXPECT_DOUBLE_EQ(stats.norm, 13);
    ASSIGN_OR_RETURN(const int64_t zeros, CountGradZeros(shards, 1.0, groups));
    EXPECT_EQ(zeros, 1);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
