#include "common/recovery/state_pieces.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/schedule/from_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

JobSpec SpecOf(int world_size, int tp = 1, int pp = 1, int cp = 1) {
  JobSpec spec;
  spec.resources.world_size = world_size;
  spec.parallel.tensor_model_parallel_size = tp;
  spec.parallel.pipeline_model_parallel_size = pp;
  spec.parallel.context_parallel_size = cp;
  return spec;
}

StatePieces Pieces(const JobSpec& spec) {
  const auto topology = RankTopology::Create(TopologyOf(spec));
  EXPECT_TRUE(topology.ok()) << topology.status();
  return PiecesOf(spec, *topology);
}

using Ranks = std::vector<std::vector<int64_t>>;

TEST(StatePiecesTest, ReplicasHoldTheSame) {
  const StatePieces pieces = Pieces(SpecOf(4, /*tp=*/2));
  EXPECT_EQ(pieces.num_pieces, 2);
  EXPECT_EQ(pieces.of_rank, (Ranks{{0}, {1}, {0}, {1}}));
}

TEST(StatePiecesTest, StagesAndTensorRanksHoldDifferentOnes) {
  const StatePieces pieces = Pieces(SpecOf(8, /*tp=*/2, /*pp=*/2));
  EXPECT_EQ(pieces.of_rank, (Ranks{{0}, {1}, {0}, {1}, {2}, {3}, {2}, {3}}));
}

TEST(StatePiecesTest, ContextParallelRanksAreReplicas) {
  EXPECT_EQ(Pieces(SpecOf(4, 1, 1, /*cp=*/2)).num_pieces, 1);
}

TEST(StatePiecesTest, AShardedOptimizerHasOneARank) {
  JobSpec spec = SpecOf(4, /*tp=*/2);
  spec.parallel.use_distributed_optimizer = true;
  const StatePieces pieces = Pieces(spec);
  EXPECT_EQ(pieces.num_pieces, 4);
  EXPECT_EQ(pieces.of_rank, (Ranks{{0}, {2}, {1}, {3}}));
}

TEST(StatePiecesTest, InstancesOfTheDistributedOptimizerAreReplicas) {
  JobSpec spec = SpecOf(4);
  spec.parallel.use_distributed_optimizer = true;
  spec.parallel.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(Pieces(spec).of_rank, (Ranks{{0}, {1}, {0}, {1}}));
}

TEST(StatePiecesTest, RandomInitialisationAndLayerWiseMuonShareNothing) {
  JobSpec spec = SpecOf(3);
  spec.training.data_parallel_random_init = true;
  EXPECT_EQ(Pieces(spec).num_pieces, 3);
  spec = SpecOf(3);
  spec.optimizer.optimizer = "dist_muon";
  EXPECT_EQ(Pieces(spec).num_pieces, 3);
}

TEST(StatePiecesTest, ExpertsAreReplicatedOverOtherRanks) {
  JobSpec spec = SpecOf(4);
  spec.model.num_experts = 4;
  spec.parallel.expert_model_parallel_size = 2;
  const StatePieces pieces = Pieces(spec);
  EXPECT_EQ(pieces.num_pieces, 3);  // dense, and experts of ep 0 and 1
  EXPECT_EQ(pieces.of_rank, (Ranks{{0, 1}, {0, 2}, {0, 1}, {0, 2}}));
}

TEST(StatePiecesTest, TheLayoutNamesDataParallelismOnlyWhereItCuts) {
  EXPECT_EQ(Pieces(SpecOf(4, 2)).layout, Pieces(SpecOf(6, 2)).layout);
  EXPECT_NE(Pieces(SpecOf(4, 2)).layout, Pieces(SpecOf(4)).layout);
  JobSpec four = SpecOf(4), six = SpecOf(6);
  four.parallel.use_distributed_optimizer = six.parallel.use_distributed_optimizer = true;
  EXPECT_NE(Pieces(four).layout, Pieces(six).layout);
  EXPECT_NE(Pieces(four).layout, Pieces(SpecOf(4)).layout);
}

// Who shares a piece is who shares the group's data: a second way to say it, by coordinates.
TEST(StatePiecesTest, PiecesCoverAndAgreeWithCoordinates) {
  for (const bool sharded : {false, true}) {
    for (const int tp : {1, 2}) {
      for (const int cp : {1, 2}) {
        for (const int pp : {1, 2}) {
          for (const int dp : {1, 3, 4}) {
            for (const int ep : {0, 1, 2}) {
              if (ep == 2 && (dp * cp * tp) % (2 * tp) != 0) continue;
              JobSpec spec = SpecOf(tp * cp * pp * dp, tp, pp, cp);
              spec.parallel.use_distributed_optimizer = sharded;
              if (ep > 0) {
                spec.model.num_experts = 4;
                spec.parallel.expert_model_parallel_size = ep;
              }
              const auto topology = RankTopology::Create(TopologyOf(spec));
              ASSERT_TRUE(topology.ok()) << topology.status();
              const StatePieces pieces = PiecesOf(spec, *topology);
              std::map<int64_t, std::set<std::vector<int>>> owners;
              for (int rank = 0; rank < topology->world_size(); ++rank) {
                const RankCoordinates at = topology->Coordinates(rank);
                const std::vector<int64_t>& mine = pieces.of_rank[rank];
                ASSERT_EQ(mine.size(), ep > 0 ? 2u : 1u);
                owners[mine[0]].insert({at.pp, at.tp, sharded ? at.dp : 0, sharded ? at.cp : 0});
                if (ep > 0) {
                  owners[mine[1]].insert(
                      {-1, at.pp, at.ep, at.expert_tp, sharded ? at.expert_dp : 0});
                }
              }
              ASSERT_EQ(static_cast<int64_t>(owners.size()), pieces.num_pieces) << pieces.layout;
              ASSERT_EQ(owners.begin()->first, 0);
              ASSERT_EQ(owners.rbegin()->first, pieces.num_pieces - 1);
              for (const auto& [piece, who] : owners) ASSERT_EQ(who.size(), 1u) << pieces.layout;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster
