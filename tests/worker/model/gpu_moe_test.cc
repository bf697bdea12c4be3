// A mixture of experts on a GPU beside the CPU in fp64, from the same numbers: what the router
// chooses and what its losses pull at, and rows that go through dispatcher and experts.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/comm/self_communicator.h"
#include "worker/cuda/row_ops.h"
#include "worker/model/experts.h"
#include "worker/model/grouped_experts.h"
#include "worker/moe/allgather_dispatcher.h"
#include "worker/moe/alltoall_dispatcher.h"
#include "worker/moe/router.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

struct Where {
  at::Device device;
  at::ScalarType dtype;
};
const Where kExact{at::kCPU, at::kDouble};

// |a - b| / |b|.
double RelativeError(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kCPU, at::kDouble), y = b.detach().to(at::kDouble);
  return (x - y).norm().item<double>() / std::max(y.norm().item<double>(), 1e-30);
}

// Numbers that every type holds exactly.
at::Tensor Given(at::IntArrayRef sizes, uint64_t seed, const Where& where) {
  return RandomLeaf(sizes, seed).detach().to(at::kBFloat16).to(where.device, where.dtype);
}

ParameterPtr ParameterOf(const at::Tensor& data) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = "given";
  parameter->data = data.clone().set_requires_grad(true);
  const bool wide = data.scalar_type() == at::kDouble;
  parameter->main_grad =
      at::full(data.sizes(), std::nan(""), data.options().dtype(wide ? at::kDouble : at::kFloat));
  parameter->main_grad_is_zero = true;
  return parameter;
}

class GpuMoeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    at::globalContext().setAllowTF32CuBLAS(false);
    UseCudaRowOps();
  }
};

// ---- Router ----

struct Routed {
  at::Tensor probs, map, dlogits, counts;
  std::map<std::string, double> losses;
};

// The router's weight is the identity, so that its input is the logits.
Routed Route(const MoeConfig& config, const Where& where) {
  constexpr int64_t kBatch = 2, kSeq = 48;
  const int64_t experts = config.num_experts;
  ExpertState state;
  state.SetSideLossScale(0.5);
  auto weight = ParameterOf(at::eye(experts, at::TensorOptions(where.device).dtype(where.dtype)));
  const TopKRouter router(
      {.config = config, .name = "router", .weight = weight, .experts = &state});
  if (config.expert_bias) {
    state.biases()[0].bias.copy_(RandomLeaf({experts}, 9, at::kFloat).detach().mul(0.1));
  }
  const at::Tensor x = RandomLeaf({kBatch * kSeq, experts}, 5, at::kFloat)
                           .detach()
                           .mul(2)
                           .to(where.device, where.dtype)
                           .set_requires_grad(true);
  const RoutedTokens routed = router.Forward(x, {.batch = kBatch, .seq = kSeq, .seq_major = true},
                                             /*padding=*/{}, /*training=*/true);
  routed.probs.backward(Given(routed.probs.sizes(), 6, where));
  Routed result{.probs = routed.probs, .map = routed.map, .dlogits = x.grad()};
  if (config.expert_bias) result.counts = state.biases()[0].counts;
  const auto losses = state.ReduceSideLosses(ParallelContext::SingleProcess(), where.device, 1, 1);
  EXPECT_TRUE(losses.ok()) << losses.status();
  if (losses.ok()) result.losses = *losses;
  return result;
}

std::map<std::string, MoeConfig> Routers() {
  MoeConfig base;
  base.num_experts = base.hidden_size = 8;
  base.topk = 2;
  base.layer_has_experts = {true};
  std::map<std::string, MoeConfig> routers;
  MoeConfig& losses = routers["softmax, every loss"] = base;
  losses.side_losses = {{BalancingLoss::kAuxLoss, 0.02},
                        {BalancingLoss::kSeqAuxLoss, 0.03},
                        {BalancingLoss::kGlobalAuxLoss, 0.01}};
  losses.z_loss_coeff = 0.01;
  MoeConfig& sigmoid = routers["sigmoid, bias, loss"] = base;
  sigmoid.score = RouterScore::kSigmoid;
  sigmoid.expert_bias = true;
  sigmoid.scaling_factor = 2.5;
  sigmoid.side_losses = {{BalancingLoss::kAuxLoss, 0.02}};
  MoeConfig& groups = routers["groups, over all"] = base;
  groups.pre_softmax = true;
  groups.topk = 4;
  groups.num_groups = 4;
  groups.group_topk = 2;
  MoeConfig& sinkhorn = routers["sinkhorn"] = base;
  sinkhorn.sinkhorn = true;
  MoeConfig& dropping = routers["dropping the smallest"] = base;
  dropping.capacity_factor = 0.75;
  return routers;
}

TEST_F(GpuMoeTest, RouterChoosesAsTheCpuDoes) {
  for (const auto& [name, config] : Routers()) {
    const Routed exact = Route(config, kExact);
    for (const auto& [dtype, bound] :
         {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5)}) {
      SCOPED_TRACE(name + " in " + at::toString(dtype));
      const Routed gpu = Route(config, {at::kCUDA, dtype});
      EXPECT_TRUE(at::equal(gpu.map.cpu(), exact.map));
      EXPECT_LE(RelativeError(gpu.probs, exact.probs), bound);
      EXPECT_LE(RelativeError(gpu.dlogits, exact.dlogits), bound);
      EXPECT_EQ(gpu.counts.defined(), exact.counts.defined());
      if (exact.counts.defined()) {
        EXPECT_TRUE(at::equal(gpu.counts.cpu(), exact.counts));
      }
      ASSERT_EQ(gpu.losses.size(), exact.losses.size());
      for (const auto& [loss, value] : exact.losses)
        EXPECT_NEAR(gpu.losses.at(loss), value, bound * value) << loss;
    }
  }
}

// ---- Dispatcher and experts ----

struct LayerCase {
  const char* name;
  TokenDispatcherType dispatcher = TokenDispatcherType::kAllToAll;
  bool grouped = false, swiglu = false, biases = false;
};
const LayerCase kLayers[] = {
    {.name = "sequential, gelu, biases", .biases = true},
    {.name = "sequential, swiglu, gathered",
     .dispatcher = TokenDispatcherType::kAllGather,
     .swiglu = true},
    {.name = "grouped, gelu, biases, gathered",
     .dispatcher = TokenDispatcherType::kAllGather,
     .grouped = true,
     .biases = true},
    {.name = "grouped, swiglu", .grouped = true, .swiglu = true},
};

// Every token goes to two of the first five experts: the last one gets no rows.
constexpr int64_t kTokens = 96, kHidden = 64, kFfn = 96, kExperts = 6;
at::Tensor Map() {
  const at::Tensor map = at::zeros({kTokens, kExperts}, at::kBool);
  const at::Tensor first = at::arange(kTokens).remainder(5).unsqueeze(1);
  const at::Tensor second = first.add(at::arange(kTokens).floor_divide(5).remainder(4).unsqueeze(1))
                                .add_(1)
                                .remainder_(5);
  return map.scatter_(1, at::cat({first, second}, 1), 1);
}

// By name: the output and all gradients.
std::map<std::string, at::Tensor> RunLayer(const LayerCase& layer, const Where& where) {
  std::vector<ExpertWeights> experts;
  std::vector<std::pair<std::string, ParameterPtr>> parameters;
  for (int64_t e = 0; e < kExperts; ++e) {
    auto given = [&, n = uint64_t{0}](const char* name, at::IntArrayRef sizes) mutable {
      const double scale = sizes.size() == 2 ? 0.25 : 1;
      auto made =
          ParameterOf(Given(sizes, 100 + 10 * static_cast<uint64_t>(e) + n++, where) * scale);
      parameters.emplace_back(std::string(name) + " of expert " + std::to_string(e), made);
      return made;
    };
    const int64_t wide = layer.swiglu ? 2 * kFfn : kFfn;
    ExpertWeights expert{.fc1 = given("fc1", {wide, kHidden}),
                         .fc2 = given("fc2", {kHidden, kFfn})};
    if (layer.biases) {
      expert.fc1_bias = given("fc1 bias", {wide});
      expert.fc2_bias = given("fc2 bias", {kHidden});
    }
    experts.push_back(expert);
  }
  // The router's part may be wider than the rows.
  const Where wide{where.device, where.dtype == at::kDouble ? at::kDouble : at::kFloat};
  const at::Tensor map = Map().to(where.device);
  const at::Tensor x = Given({kTokens, kHidden}, 1, where).set_requires_grad(true);
  const at::Tensor probs =
      Given({kTokens, kExperts}, 2, wide).abs().mul(map).detach().set_requires_grad(true);

  MoeConfig config;
  config.num_experts = kExperts;
  config.topk = 2;
  const CommunicatorPtr self = MakeSelfCommunicator("tp_ep", 0);
  const ExpertParallel alone{.tp_ep = self.get()};
  std::unique_ptr<TokenDispatcher> dispatcher;
  if (layer.dispatcher == TokenDispatcherType::kAllGather) {
    dispatcher = std::make_unique<AllGatherDispatcher>(config, alone);
  } else {
    dispatcher = std::make_unique<AllToAllDispatcher>(config, alone);
  }
  const Dispatched rows = dispatcher->Dispatch(x, {.probs = probs, .map = map});
  EXPECT_EQ(rows.rows_per_expert.back(), 0);
  const auto& run = layer.grouped ? GroupedExpertsOp : SequentialExperts;
  const at::Tensor y = dispatcher->Combine(
      rows, run(rows.tokens, rows.probs, rows.rows_per_expert, experts, layer.swiglu));
  y.backward(Given(y.sizes(), 3, where));

  std::map<std::string, at::Tensor> result = {
      {"y", y}, {"dx", x.grad()}, {"dprobs", probs.grad().mul(map)}};
  for (const auto& [name, parameter] : parameters) result[name] = parameter->main_grad;
  return result;
}

TEST_F(GpuMoeTest, RowsComeBackFromTheirExpertsAsOnTheCpu) {
  struct Type {
    at::ScalarType dtype;
    double bound;  // relative, of each tensor as a whole
  };
  for (const LayerCase& layer : kLayers) {
    const auto exact = RunLayer(layer, kExact);
    for (const Type& type : {Type{at::kDouble, 1e-12}, Type{at::kFloat, 1e-5},
                             Type{at::kBFloat16, 2e-2}, Type{at::kHalf, 3e-3}}) {
      SCOPED_TRACE(std::string(layer.name) + " in " + at::toString(type.dtype));
      const auto gpu = RunLayer(layer, {at::kCUDA, type.dtype});
      for (const auto& [name, tensor] : exact) {
        if (tensor.count_nonzero().item<int64_t>() == 0) {  // of the expert without rows
          EXPECT_EQ(gpu.at(name).count_nonzero().item<int64_t>(), 0) << name;
        } else {
          EXPECT_LE(RelativeError(gpu.at(name), tensor), type.bound) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster
