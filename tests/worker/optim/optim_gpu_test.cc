// The optimizers' updates on a GPU beside the CPU's: whole parameters and shards as the distributed
// optimizer cuts them, each type of parameters and gradients, clipping and loss scale.
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/worker/optim/optim_test_util.h"
#include "worker/comm/self_communicator.h"
#include "worker/parallel/flat_ops.h"

namespace muster {
namespace {

constexpr int kSteps = 5;

struct Types {
  at::ScalarType params, grads;
  // Of the values after kSteps steps: fp64's and fp32's rounding; values of half types are rounded
  // from fp32 ones, to either side. Muon's iteration multiplies the rounding of small singular
  // values by up to 500.
  double bound, muon_bound;
};
const Types kTypes[] = {{at::kDouble, at::kDouble, 1e-12, 1e-11},
                        {at::kFloat, at::kFloat, 2e-6, 1e-4},
                        {at::kBFloat16, at::kFloat, 8e-3, 8e-3},
                        {at::kHalf, at::kFloat, 1e-3, 1.2e-3},
                        {at::kHalf, at::kHalf, 1e-3, 1.2e-3}};
// With the iteration in bf16 (2^-9 a rounding); each step moves values by 0.01 on average.
constexpr double kBf16IterationBound = 2e-2;

// One rank's part of a flat buffer: a whole matrix, a whole bias, and a matrix of which it owns the
// elements from 37 on.
struct Model {
  std::vector<ParameterPtr> params;
  std::vector<OwnedShard> shards;
};

Model MakeModel(const Types& types, at::Device device, bool whole_only) {
  Model model;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"fc1.weight", {24, 16}}, {"fc1.bias", {24}}, {"fc2.weight", {16, 24}}};
  for (const auto& [name, shape] : shapes) {
    const double phase = static_cast<double>(model.params.size());
    const ParameterPtr p =
        MakeParam(name, Waves(shape, phase, types.params).to(device), types.grads);
    p->main_grad = p->main_grad.to(device);
    model.params.push_back(p);
  }
  model.shards = WholeShards(model.params);
  if (whole_only) return model;
  OwnedShard& part = model.shards.back();
  const int64_t begin = 37, count = part.parameter->data.numel() - begin;
  part.in_param = {begin, begin + count};
  part.data = part.parameter->data.view({-1}).narrow(0, begin, count);
  part.grad = part.parameter->main_grad.view({-1}).narrow(0, begin, count);
  return model;
}

struct Outcome {
  std::vector<at::Tensor> values;  // on the CPU: parameters, then states
  std::vector<double> norms;
  int64_t num_zeros = 0;
};

Outcome Train(const OptimizerOptions& options, const Types& types, at::Device device,
              double loss_scale) {
  Outcome outcome;
  const Model model = MakeModel(types, device, options.kind == OptimizerOptions::Kind::kMuon);
  const CommunicatorPtr self = MakeSelfCommunicator("tp_pp", 0);
  auto optimizer =
      Optimizer::Create(model.shards, {.dense = self.get(), .expert = self.get()}, options);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < model.params.size(); ++i) {
      const double phase = 40.0 + 3 * step + static_cast<double>(i);
      at::Tensor grad = Waves(model.params[i]->data.sizes().vec(), phase, at::kDouble);
      grad.masked_fill_(grad.abs().lt(0.05), 0.0);  // some zeros, to be counted
      // Through the gradients' type first: both devices then start from the same numbers.
      SetGrad(*model.params[i], (grad * loss_scale).to(types.grads).to(device));
    }
    SetLr(**optimizer, 0.01, 0.1);
    const auto prepared = (*optimizer)->PrepareStep(loss_scale);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_TRUE((*optimizer)->CommitStep(*prepared).success);
    outcome.norms.push_back(prepared->grad_norm);
    outcome.num_zeros = prepared->num_zeros.value_or(0);
  }
  for (const ParameterPtr& p : model.params) outcome.values.push_back(p->data.cpu());
  for (const OptimizerStateTensor& state : (*optimizer)->StateTensors()) {
    EXPECT_EQ(state.tensor.device(), model.params[0]->data.device()) << state.kind;
    outcome.values.push_back(state.tensor.cpu());
  }
  return outcome;
}

void ExpectSame(const OptimizerOptions& options, const Types& types, double bound) {
  const double loss_scale = types.params == at::kHalf ? 1024 : 1;
  SCOPED_TRACE(testing::Message() << at::toString(types.params) << ", gradients "
                                  << at::toString(types.grads));
  const Outcome cpu = Train(options, types, at::kCPU, loss_scale);
  const Outcome gpu = Train(options, types, at::Device(at::kCUDA, 0), loss_scale);
  for (int i = 0; i < kSteps; ++i) EXPECT_NEAR(gpu.norms[i], cpu.norms[i], 1e-12 * cpu.norms[i]);
  EXPECT_EQ(gpu.num_zeros, cpu.num_zeros);
  EXPECT_GT(cpu.num_zeros, 0);
  ASSERT_EQ(gpu.values.size(), cpu.values.size());
  for (size_t i = 0; i < cpu.values.size(); ++i)
    EXPECT_LE(LargestDifference(gpu.values[i], cpu.values[i]), bound) << i;
}

class OptimGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    at::globalContext().setAllowTF32CuBLAS(false);
  }
};

TEST_F(OptimGpuTest, AdamAndSgdEqualTheCpu) {
  using Kind = OptimizerOptions::Kind;
  for (const Kind kind : {Kind::kAdam, Kind::kSgd}) {
    for (const double clip : {0.0, 1.0}) {  // norms are about 20: clipping works
      SCOPED_TRACE(testing::Message()
                   << (kind == Kind::kAdam ? "adam" : "sgd") << ", clip " << clip);
      for (const Types& types : kTypes)
        ExpectSame({.kind = kind, .clip_grad = clip, .log_num_zeros_in_grad = true}, types,
                   types.bound);
    }
  }
}

TEST_F(OptimGpuTest, MuonEqualsTheCpu) {
  for (const Types& types : kTypes) {
    for (const bool bf16 : {false, true}) {
      if (bf16 && types.params == at::kDouble) continue;
      SCOPED_TRACE(bf16 ? "bf16 iteration" : "full precision");
      const OptimizerOptions options{
          .kind = OptimizerOptions::Kind::kMuon,
          .muon = {.nesterov = true, .newton_schulz = {.bf16_iteration = bf16}},
          .log_num_zeros_in_grad = true,
          .param_groups = {.scalar_optimizer = "adam"}};
      ExpectSame(options, types, bf16 ? kBf16IterationBound : types.muon_bound);
    }
  }
}

// Elements whose squares, or whose norm, are beyond the type's range are finite all the same.
TEST_F(OptimGpuTest, NormsDoNotOverflow) {
  const at::Device gpu(at::kCUDA, 0);
  const at::Tensor half = at::full({64, 64}, 6e4, at::TensorOptions(gpu).dtype(at::kHalf));
  const at::Tensor single = at::full({64, 64}, 1e30, at::TensorOptions(gpu).dtype(at::kFloat));
  const double value = at::full({1}, 6e4, at::kHalf).item<double>();
  const double large = at::full({1}, 1e30, at::kFloat).item<double>();
  // Tensors of one type go to the fused kernel, those of several one by one.
  const at::Tensor none = at::empty({0}, half.options());
  for (const std::vector<double>& sums :
       {SumsOfSquares({half, none}), SumsOfSquares({half, none, single})}) {
    EXPECT_NEAR(sums[0], 4096 * value * value, 1e-12 * sums[0]);
    EXPECT_EQ(sums[1], 0);
  }
  const double squares = SumsOfSquares({single})[0];
  EXPECT_NEAR(squares, 4096 * large * large, 1e-12 * squares);
  const at::Tensor exact = at::full({64}, 3.0, at::TensorOptions(gpu).dtype(at::kDouble));
  EXPECT_EQ(SumOfSquares(exact), 64 * 9);
  EXPECT_EQ(SumOfSquares(exact), 64 * 9);  // and left it alone
  EXPECT_NEAR(DeviceNorm(half).item<double>(), 64 * value, 1e-3 * value);
}

TEST_F(OptimGpuTest, InfinityIsFoundAndTheStepLeavesNoTrace) {
  const Types fp16{at::kHalf, at::kHalf, 0, 0};
  const Model model = MakeModel(fp16, at::Device(at::kCUDA, 0), /*whole_only=*/false);
  const CommunicatorPtr self = MakeSelfCommunicator("tp_pp", 0);
  auto optimizer = Optimizer::Create(model.shards, {.dense = self.get(), .expert = self.get()},
                                     {.skip_non_finite = true});
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  for (const ParameterPtr& p : model.params) SetGrad(*p, at::ones_like(p->data));
  model.params[2]->main_grad.view({-1})[100] = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> before;
  for (const ParameterPtr& p : model.params) before.push_back(p->data.clone());
  const auto prepared = (*optimizer)->PrepareStep(1024);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(prepared->found_inf);
  EXPECT_FALSE((*optimizer)->CommitStep(*prepared).success);
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(at::equal(model.params[i]->data, before[i])) << i;
}

}  // namespace
}  // namespace muster
