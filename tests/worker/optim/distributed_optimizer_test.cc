// The optimizer over shards (distributed optimizer) against the one that holds every parameter
// whole. The shards are cut here by hand, out of a flat buffer over the data-parallel ranks of each
// optimizer instance.
#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gtest/gtest.h"
#include "tests/worker/optim/optim_test_util.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/comm/self_communicator.h"
#include "worker/parallel/bucket_layout.h"

namespace muster {
namespace {

struct Model {
  std::vector<ParameterPtr> params;
  std::vector<OwnedShard> shards;  // this rank's
};

const std::vector<std::pair<std::string, std::vector<int64_t>>>& Shapes() {
  static const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"emb.weight", {30, 20}}, {"fc1.weight", {40, 20}}, {"fc1.bias", {40}},
      {"fc2.weight", {20, 40}}, {"fc2.bias", {20}},       {"head.weight", {90, 100}}};
  return shapes;
}

// Parameters and gradients as views of flat buffers, cut over `num_shards`.
Model MakeModel(at::ScalarType dtype, at::ScalarType grad_dtype, int shard, int num_shards) {
  Model model;
  std::vector<BucketLayoutParam> sizes;
  for (const auto& [name, shape] : Shapes()) {
    model.params.push_back(std::make_shared<Parameter>());
    Parameter& p = *model.params.back();
    p.name = name;
    p.data = Waves(shape, static_cast<double>(sizes.size()), dtype);
    p.is_embedding_or_output_parameter = name == "emb.weight" || name == "head.weight";
    sizes.push_back({.numel = p.data.numel()});
  }
  const BucketLayout layout = ComputeBucketLayout(
      sizes, {.bucket_size = 1000, .distributed_optimizer = true, .dp_shards = num_shards});
  const at::Tensor values = at::zeros({layout.numel}, dtype);
  const at::Tensor grads = at::zeros({layout.numel}, grad_dtype);
  for (size_t i = 0; i < model.params.size(); ++i) {
    Parameter& p = *model.params[i];
    const ElementRange range = layout.params[i];
    const at::Tensor view = values.narrow(0, range.begin, range.size()).view(p.data.sizes());
    view.copy_(p.data);
    p.data = view;
    p.main_grad = grads.narrow(0, range.begin, range.size()).view(p.data.sizes());
    p.main_grad_is_zero = false;
  }
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    for (const ParamShard& s : ShardOfBucket(layout, static_cast<int>(b), shard, num_shards)) {
      const ParameterPtr& p = model.params[s.param];
      OwnedShard owned{.parameter = p, .in_param = s.in_param};
      owned.data = values.narrow(0, s.in_buffer.begin, s.in_buffer.size());
      owned.grad = grads.narrow(0, s.in_buffer.begin, s.in_buffer.size());
      if (owned.is_whole()) {
        owned.data = owned.data.view(p->data.sizes());
        owned.grad = owned.grad.view(p->data.sizes());
      }
      model.shards.push_back(owned);
    }
  }
  return model;
}

void SetGrads(const Model& model, int step) {
  for (size_t i = 0; i < model.params.size(); ++i) {
    at::Tensor grad =
        Waves(Shapes()[i].second, 40.0 + 3 * step + static_cast<double>(i), at::kDouble);
    grad.masked_fill_(grad.abs().lt(0.05), 0.0);  // some zeros, to be counted
    SetGrad(*model.params[i], grad);
  }
}

// Ten steps of one process; the last step's statistics and the final values.
struct Outcome {
  std::vector<at::Tensor> values;
  PreparedStep last;
  double params_norm = 0, logged_lr = 0;
  std::vector<GroupIdentity> groups;
};

constexpr int kSteps = 10;

absl::StatusOr<Outcome> Train(const Model& model, Optimizer& optimizer) {
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    SetGrads(model, step);
    SetLr(optimizer, 0.01, 0.1);
    ASSIGN_OR_RETURN(outcome.last, optimizer.PrepareStep());
    if (!optimizer.CommitStep(outcome.last).success) return absl::InternalError("skipped");
  }
  for (const ParameterPtr& p : model.params) outcome.values.push_back(p->data);
  ASSIGN_OR_RETURN(outcome.params_norm, optimizer.ParamsNorm());
  outcome.logged_lr = optimizer.logged_lr();
  for (const OptimizerGroupState& group : optimizer.GroupStates()) {
    EXPECT_EQ(group.step, kSteps);
    outcome.groups.push_back(group.identity);
  }
  return outcome;
}

struct Layout {
  int dp, instances;
};

void ExpectShardsEqualWhole(OptimizerOptions options, at::ScalarType dtype,
                            at::ScalarType grad_dtype, bool bit_for_bit) {
  at::set_num_threads(1);
  const CommunicatorPtr self = MakeSelfCommunicator("tp_pp", 0);
  const Model whole = MakeModel(dtype, grad_dtype, 0, 1);
  auto plain = Optimizer::Create(WholeShards(whole.params),
                                 {.dense = self.get(), .expert = self.get()}, options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto expected = Train(whole, **plain);
  ASSERT_TRUE(expected.ok()) << expected.status();

  for (const Layout& layout : {Layout{2, 1}, Layout{4, 1}, Layout{3, 1}, Layout{4, 2}}) {
    SCOPED_TRACE(testing::Message() << "dp " << layout.dp << ", instances " << layout.instances);
    const auto topology = RankTopology::Create(
        {.world_size = layout.dp, .num_distributed_optimizer_instances = layout.instances});
    ASSERT_TRUE(topology.ok()) << topology.status();
    RunRanks(layout.dp, [&](CommunicatorPtr world) -> absl::Status {
      ASSIGN_OR_RETURN(const ParallelContext parallel,
                       ParallelContext::Create(*topology, world->rank(), world));
      const Communicator& intra = parallel.Group("intra_dp_cp");
      const Model model = MakeModel(dtype, grad_dtype, intra.rank(), intra.size());
      JobSpec spec;
      spec.parallel.use_distributed_optimizer = true;
      ASSIGN_OR_RETURN(auto optimizer,
                       Optimizer::Create(model.params, model.shards,
                                         OptimizerGroups::Of(parallel, spec), options));
      // The step's values are this rank's; the rest of the model must stay as it is.
      std::vector<at::Tensor> start;
      for (const ParameterPtr& p : model.params) start.push_back(p->data.clone());
      ASSIGN_OR_RETURN(const Outcome outcome, Train(model, *optimizer));
      EXPECT_NEAR(outcome.last.grad_norm, expected->last.grad_norm, 1e-12);
      EXPECT_EQ(outcome.last.num_zeros, expected->last.num_zeros);
      EXPECT_NEAR(outcome.params_norm, expected->params_norm, 1e-6 * expected->params_norm);
      EXPECT_EQ(outcome.logged_lr, expected->logged_lr);
      EXPECT_EQ(outcome.groups, expected->groups);
      for (size_t i = 0; i < model.params.size(); ++i) {
        const ParameterPtr& p = model.params[i];
        at::Tensor want = start[i].view({-1});
        for (const OwnedShard& s : model.shards) {
          if (s.parameter != p) continue;
          want.narrow(0, s.in_param.begin, s.in_param.size())
              .copy_(expected->values[i].view({-1}).narrow(0, s.in_param.begin, s.in_param.size()));
        }
        if (bit_for_bit) {
          EXPECT_TRUE(at::equal(p->data.view({-1}), want)) << p->name;
        } else {
          EXPECT_LE(LargestDifference(p->data.view({-1}), want), 1e-12) << p->name;
        }
      }
      return absl::OkStatus();
    });
  }
}

TEST(DistributedOptimizerTest, AdamEqualsWholeBitForBit) {
  for (const auto& [dtype, grad] : {std::pair{at::kFloat, at::kFloat},
                                    {at::kBFloat16, at::kFloat},
                                    {at::kBFloat16, at::kBFloat16},
                                    {at::kHalf, at::kFloat},
                                    {at::kDouble, at::kDouble}}) {
    SCOPED_TRACE(testing::Message() << at::toString(dtype) << " " << at::toString(grad));
    ExpectShardsEqualWhole({.clip_grad = 0, .log_num_zeros_in_grad = true}, dtype, grad, true);
  }
}

TEST(DistributedOptimizerTest, SgdEqualsWholeBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(at::toString(dtype));
    ExpectShardsEqualWhole({.kind = OptimizerOptions::Kind::kSgd, .clip_grad = 0}, dtype,
                           dtype == at::kDouble ? at::kDouble : at::kFloat, true);
  }
}

// The squares are added in another order, so the norm may differ in its last bits.
TEST(DistributedOptimizerTest, ClippedByTheCommonNorm) {
  ExpectShardsEqualWhole({.clip_grad = 1.0}, at::kDouble, at::kDouble, false);
}

TEST(DistributedOptimizerTest, GroupsDoNotDependOnWhatIsOwned) {
  // With decoupled lr the middle ranks own only parts of head.weight, no bias, no fc weight.
  ExpectShardsEqualWhole(
      {.clip_grad = 0, .param_groups = {.decoupled_lr = 0.5, .decoupled_min_lr = 0.1}}, at::kFloat,
      at::kFloat, true);
}

TEST(DistributedOptimizerTest, InfinityInOneShardSkipsTheStepOfAll) {
  at::set_num_threads(1);
  for (const int bad_rank : {0, 3}) {
    const auto topology = RankTopology::Create({.world_size = 4});
    ASSERT_TRUE(topology.ok());
    RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
      ASSIGN_OR_RETURN(const ParallelContext parallel,
                       ParallelContext::Create(*topology, world->rank(), world));
      const Model model = MakeModel(at::kHalf, at::kFloat, world->rank(), 4);
      JobSpec spec;
      spec.parallel.use_distributed_optimizer = true;
      ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(model.params, model.shards,
                                                         OptimizerGroups::Of(parallel, spec),
                                                         {.skip_non_finite = true}));
      SetGrads(model, 0);
      if (world->rank() == bad_rank)
        model.shards.back().grad.view({-1})[0] = std::numeric_limits<float>::infinity();
      std::vector<at::Tensor> before;
      for (const ParameterPtr& p : model.params) before.push_back(p->data.clone());
      SetLr(*optimizer, 0.1, 0.1);
      ASSIGN_OR_RETURN(const PreparedStep prepared, optimizer->PrepareStep(4.0));
      EXPECT_TRUE(prepared.found_inf);
      EXPECT_FALSE(optimizer->CommitStep(prepared).success);
      for (size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(at::equal(model.params[i]->data, before[i]));
      // What lies outside of the shards is not final and does not count.
      SetGrads(model, 1);
      for (const ParameterPtr& p : model.params) {
        at::Tensor garbage = at::full(p->main_grad.sizes(), std::nan(""), at::kFloat);
        for (const OwnedShard& s : model.shards) {
          if (s.parameter != p) continue;
          garbage.view({-1})
              .narrow(0, s.in_param.begin, s.in_param.size())
              .copy_(s.grad.view({-1}));
        }
        p->main_grad.copy_(garbage);
      }
      ASSIGN_OR_RETURN(const PreparedStep clean, optimizer->PrepareStep(4.0));
      EXPECT_FALSE(clean.found_inf);
      EXPECT_TRUE(std::isfinite(clean.grad_norm));
      return absl::OkStatus();
    });
  }
}

TEST(DistributedOptimizerTest, StateTensorsSayWhereTheyLie) {
  at::set_num_threads(1);
  const auto topology = RankTopology::Create({.world_size = 2});
  ASSERT_TRUE(topology.ok());
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    ASSIGN_OR_RETURN(const ParallelContext parallel,
                     ParallelContext::Create(*topology, world->rank(), world));
    const Model model = MakeModel(at::kBFloat16, at::kFloat, world->rank(), 2);
    JobSpec spec;
    spec.parallel.use_distributed_optimizer = true;
    ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(model.params, model.shards,
                                                       OptimizerGroups::Of(parallel, spec), {}));
    const auto states = optimizer->StateTensors();
    EXPECT_EQ(states.size(), 3 * model.shards.size());
    for (const OptimizerStateTensor& state : states) {
      const auto shard =
          std::find_if(model.shards.begin(), model.shards.end(),
                       [&](const OwnedShard& s) { return s.parameter->name == state.param; });
      EXPECT_NE(shard, model.shards.end());
      const Parameter& p = *shard->parameter;
      EXPECT_EQ(state.global_shape, p.data.sizes().vec());
      EXPECT_EQ(state.tensor.numel(), shard->in_param.size());
      if (shard->is_whole()) {
        EXPECT_TRUE(state.local_shape.empty());
        EXPECT_EQ(state.tensor.sizes(), p.data.sizes());
      } else {
        EXPECT_EQ(state.local_shape, p.data.sizes().vec());
        EXPECT_EQ(state.flat_begin, shard->in_param.begin);
        EXPECT_EQ(state.tensor.dim(), 1);
      }
      if (state.kind == "main_param") {
        EXPECT_TRUE(at::equal(state.tensor.view({-1}),
                              p.data.reshape({-1})
                                  .narrow(0, shard->in_param.begin, shard->in_param.size())
                                  .to(at::kFloat)));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
