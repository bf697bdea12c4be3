// Muon over tensor-parallel shards against one process, and the layer-wise form against the plain
// one.
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/optim/optim_test_util.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/comm/self_communicator.h"
#include "worker/optim/layer_wise.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using TpMode = MuonOptions::TpMode;

// Whole weights of a layer of 8 heads in 4 query groups of 2 channels, width 12.
struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  int partition_dim;  // -1: on every rank whole
  int blocks = 1;     // partition_stride
};
const std::vector<Weight>& Weights() {
  static const std::vector<Weight> weights = {
      {"linear_qkv.weight", {32, 12}, 0},    {"linear_proj.weight", {12, 16}, 1},
      {"linear_fc1.weight", {32, 12}, 0, 2}, {"linear_fc2.weight", {12, 16}, 1},
      {"router.weight", {3, 12}, -1},        {"norm.weight", {12}, -1},
      {"linear_fc1.bias", {32}, 0, 2},       {"small.weight", {4, 12}, 0}};
  return weights;
}

at::Tensor ShardOf(const at::Tensor& whole, const Weight& weight, int rank, int tp) {
  if (weight.partition_dim < 0) return whole;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& block : whole.chunk(weight.blocks, weight.partition_dim))
    parts.push_back(block.chunk(tp, weight.partition_dim)[rank]);
  return at::cat(parts, weight.partition_dim).contiguous();
}

OptimizerOptions MuonJob(TpMode mode) {
  return {.kind = OptimizerOptions::Kind::kMuon,
          .muon = {.nesterov = true, .tp_mode = mode, .qkv_rows = {4, 2, 2}},
          .clip_grad = 1,
          .param_groups = {.scalar_optimizer = "adam"}};
}

constexpr int kSteps = 4;
constexpr double kLr = 0.02, kWeightDecay = 0.1;

std::vector<ParameterPtr> MakeParams(at::ScalarType dtype, int rank, int tp) {
  std::vector<ParameterPtr> params;
  for (size_t i = 0; i < Weights().size(); ++i) {
    const Weight& weight = Weights()[i];
    const at::Tensor whole = Waves(weight.shape, static_cast<double>(i), dtype);
    params.push_back(MakeParam(weight.name, ShardOf(whole, weight, rank, tp),
                               dtype == at::kDouble ? at::kDouble : at::kFloat));
    params.back()->partition_dim = weight.partition_dim;
    params.back()->partition_stride = weight.blocks;
    params.back()->tensor_model_parallel = weight.partition_dim >= 0;
  }
  return params;
}

void SetGrads(const std::vector<ParameterPtr>& params, int step, int rank, int tp) {
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor whole =
        Waves(Weights()[i].shape, 100.0 + 7 * step + static_cast<double>(i), at::kDouble);
    SetGrad(*params[i], ShardOf(whole, Weights()[i], rank, tp));
  }
}

// What one process has after kSteps.
std::vector<at::Tensor> OneProcess(at::ScalarType dtype) {
  const CommunicatorPtr self = MakeSelfCommunicator("tp_pp", 0);
  const std::vector<ParameterPtr> params = MakeParams(dtype, 0, 1);
  auto optimizer =
      Optimizer::Create(WholeShards(params), {.dense = self.get(), .expert = self.get()},
                        MuonJob(TpMode::kDuplicated));
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  for (int step = 0; step < kSteps; ++step) {
    SetGrads(params, step, 0, 1);
    EXPECT_TRUE(StepOnce(**optimizer, kLr, kWeightDecay).ok());
  }
  std::vector<at::Tensor> values;
  for (const ParameterPtr& p : params) values.push_back(p->data);
  return values;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Create(const std::vector<ParameterPtr>& params,
                                                  const ParallelContext& parallel,
                                                  const OptimizerOptions& options) {
  return Optimizer::Create(params, WholeShards(params), OptimizerGroups::Of(parallel, JobSpec()),
                           options);
}

TEST(MuonTpTest, DuplicatedAndDistributedEqualOneProcess) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = OneProcess(at::kDouble);
  for (const TpMode mode : {TpMode::kDuplicated, TpMode::kDistributed}) {
    for (const int tp : {2, 4}) {
      SCOPED_TRACE(testing::Message() << "mode " << static_cast<int>(mode) << " tp " << tp);
      const auto topology = RankTopology::Create({.world_size = tp, .tp = tp});
      ASSERT_TRUE(topology.ok());
      RunRanks(tp, [&](CommunicatorPtr world) -> absl::Status {
        const int rank = world->rank();
        ASSIGN_OR_RETURN(const ParallelContext parallel,
                         ParallelContext::Create(*topology, rank, world));
        const auto params = MakeParams(at::kDouble, rank, tp);
        ASSIGN_OR_RETURN(auto optimizer, Create(params, parallel, MuonJob(mode)));
        for (int step = 0; step < kSteps; ++step) {
          SetGrads(params, step, rank, tp);
          RETURN_IF_ERROR(StepOnce(*optimizer, kLr, kWeightDecay));
        }
        for (size_t i = 0; i < params.size(); ++i) {
          EXPECT_LE(
              LargestDifference(params[i]->data, ShardOf(expected[i], Weights()[i], rank, tp)),
              1e-10)
              << params[i]->name;
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(MuonTpTest, BlockwiseTakesEachShardForAMatrix) {
  at::set_num_threads(1);
  const auto topology = RankTopology::Create({.world_size = 2, .tp = 2});
  ASSERT_TRUE(topology.ok());
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, rank, world));
    const auto params = MakeParams(at::kDouble, rank, 2);
    OptimizerOptions options = MuonJob(TpMode::kBlockwise);
    options.muon.nesterov = false;
    options.clip_grad = 0;
    ASSIGN_OR_RETURN(auto optimizer, Create(params, parallel, options));
    SetGrads(params, 0, rank, 2);
    std::vector<at::Tensor> before;
    for (const ParameterPtr& p : params) before.push_back(p->data.clone());
    RETURN_IF_ERROR(StepOnce(*optimizer, kLr, 0));
    for (size_t i = 0; i < params.size(); ++i) {
      if (params[i]->data.dim() != 2 || params[i]->name == "linear_qkv.weight") continue;
      const int64_t rows = params[i]->data.size(0), cols = params[i]->data.size(1);
      const double scale = MuonScale(MuonOptions::ScaleMode::kSpectral, rows, cols);
      const at::Tensor update = NewtonSchulz(params[i]->main_grad * 0.1, {}) * scale;
      EXPECT_LE(LargestDifference(params[i]->data, before[i] - kLr * update), 1e-12)
          << params[i]->name;
    }
    return absl::OkStatus();
  });
}

TEST(MuonTpTest, StepDroppedAfterPrepareLeavesNoTrace) {
  at::set_num_threads(1);
  const auto topology = RankTopology::Create({.world_size = 2, .tp = 2});
  ASSERT_TRUE(topology.ok());
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, rank, world));
    std::vector<std::vector<at::Tensor>> results;
    for (const bool drop : {false, true}) {
      const auto params = MakeParams(at::kBFloat16, rank, 2);
      ASSIGN_OR_RETURN(auto optimizer, Create(params, parallel, MuonJob(TpMode::kDuplicated)));
      for (int step = 0; step < 3; ++step) {
        if (drop && step == 1) {
          SetGrads(params, 50, rank, 2);
          ASSIGN_OR_RETURN(PreparedStep prepared, optimizer->PrepareStep());
          prepared.found_inf = true;  // another rank's word
          EXPECT_FALSE(optimizer->CommitStep(prepared).success);
        }
        SetGrads(params, step, rank, 2);
        RETURN_IF_ERROR(StepOnce(*optimizer, kLr, kWeightDecay));
      }
      results.emplace_back();
      for (const ParameterPtr& p : params) results.back().push_back(p->data);
      for (const OptimizerStateTensor& s : optimizer->StateTensors())
        results.back().push_back(s.tensor);
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
    return absl::OkStatus();
  });
}

TEST(LayerWiseTest, OwnersAreDealtInPingPong) {
  // Ten parameters in ascending size over four ranks: [p0 p7 p8][p1 p6 p9][p2 p5][p3 p4].
  EXPECT_THAT(PingPongOwners({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4),
              ElementsAre(0, 1, 2, 3, 3, 2, 1, 0, 0, 1));
  // By size, equal sizes in order of appearance.
  EXPECT_THAT(PingPongOwners({30, 10, 20, 10}, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(PingPongOwners({3, 1, 2}, 1), ElementsAre(0, 0, 0));
}

TEST(LayerWiseTest, TensorsComeFromTheirOwners) {
  at::set_num_threads(1);
  // Two types, one tensor beyond the size that is packed, an owner without any.
  const std::vector<std::vector<int64_t>> shapes = {{3, 5}, {7}, {5'000'000}, {2, 2}, {11}, {4}};
  const std::vector<int> owners = {0, 2, 0, 2, 0, 2};
  RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
    std::vector<OwnedTensor> tensors;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const at::ScalarType dtype = i % 2 == 0 ? at::kFloat : at::kBFloat16;
      tensors.push_back(
          {.data = at::full(shapes[i], world->rank() * 10.0 + i, dtype), .owner = owners[i]});
    }
    RETURN_IF_ERROR(BroadcastFromOwners(tensors, *world));
    for (size_t i = 0; i < shapes.size(); ++i)
      EXPECT_TRUE(tensors[i].data.eq(owners[i] * 10.0 + i).all().item<bool>()) << i;
    return absl::OkStatus();
  });
}

TEST(LayerWiseTest, EqualsPlainMuonBitForBit) {
  at::set_num_threads(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const std::vector<at::Tensor> expected = OneProcess(dtype);
    for (const int dp : {2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << at::toString(dtype) << " dp " << dp);
      const auto topology = RankTopology::Create({.world_size = dp});
      ASSERT_TRUE(topology.ok());
      std::vector<std::vector<std::string>> states(dp);
      RunRanks(dp, [&](CommunicatorPtr world) -> absl::Status {
        const int rank = world->rank();
        ASSIGN_OR_RETURN(const ParallelContext parallel,
                         ParallelContext::Create(*topology, rank, world));
        const auto params = MakeParams(dtype, 0, 1);
        OptimizerOptions options = MuonJob(TpMode::kDuplicated);
        options.layer_wise = true;
        ASSIGN_OR_RETURN(auto optimizer, Create(params, parallel, options));
        for (int step = 0; step < kSteps; ++step) {
          SetGrads(params, step, 0, 1);
          RETURN_IF_ERROR(StepOnce(*optimizer, kLr, kWeightDecay));
        }
        for (size_t i = 0; i < params.size(); ++i)
          EXPECT_TRUE(at::equal(params[i]->data, expected[i])) << params[i]->name;
        for (const OptimizerStateTensor& s : optimizer->StateTensors())
          states[rank].push_back(s.kind + " " + s.param);
        // Every rank knows every group and counts its steps.
        EXPECT_EQ(optimizer->GroupStates().size(), 2u);
        for (const OptimizerGroupState& group : optimizer->GroupStates())
          EXPECT_EQ(group.step, kSteps);
        // Over the owners: the whole model's.
        ASSIGN_OR_RETURN(const double norm, optimizer->ParamsNorm());
        double squares = 0;
        for (const at::Tensor& value : expected)
          squares += value.to(at::kDouble).square().sum().item<double>();
        EXPECT_NEAR(norm, std::sqrt(squares), dtype == at::kBFloat16 ? 0.01 : 1e-6);
        return absl::OkStatus();
      });
      // Each state has one owner.
      std::vector<std::string> all;
      for (const auto& of_rank : states) {
        EXPECT_FALSE(of_rank.empty());
        all.insert(all.end(), of_rank.begin(), of_rank.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
      const size_t states_of_all = 6 * 1 + 2 * 2 + (dtype == at::kBFloat16 ? 8 : 0);
      EXPECT_EQ(all.size(), states_of_all);
    }
  }
}

TEST(LayerWiseTest, TensorAndDataParallelTogether) {
  at::set_num_threads(1);
  const std::vector<at::Tensor> expected = OneProcess(at::kDouble);
  const auto topology = RankTopology::Create({.world_size = 4, .tp = 2});
  ASSERT_TRUE(topology.ok());
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const int tp_rank = parallel.coordinates().tp;
    const auto params = MakeParams(at::kDouble, tp_rank, 2);
    OptimizerOptions options = MuonJob(TpMode::kDistributed);
    options.layer_wise = true;
    ASSIGN_OR_RETURN(auto optimizer, Create(params, parallel, options));
    for (int step = 0; step < kSteps; ++step) {
      SetGrads(params, step, tp_rank, 2);
      RETURN_IF_ERROR(StepOnce(*optimizer, kLr, kWeightDecay));
    }
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_LE(LargestDifference(params[i]->data, ShardOf(expected[i], Weights()[i], tp_rank, 2)),
                1e-10)
          << params[i]->name;
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
