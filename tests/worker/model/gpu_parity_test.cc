// The engine on a GPU beside the CPU in fp64, from the same weights: losses, gradients, and
// parameters after AdamW steps. fp64 takes the exact attention, the other types the fused kernels.
// Recomputation is compared with the same GPU's training without it.
#include <cmath>
#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/cuda/row_ops.h"
#include "worker/optim/optimizer.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

constexpr double kLr = 1e-3;

struct Training {
  std::vector<double> losses;
  std::vector<at::Tensor> grads;    // of the first step, fp64 on the CPU
  std::vector<at::Tensor> weights;  // after the last step
};

struct Case {
  at::Device device;
  at::ScalarType dtype;
  double loss_scale = 1;  // fp16
};

TransformerConfig Gpt2Like() {
  TransformerConfig config = TinyConfig();
  config.hidden_size = 64;
  config.ffn_hidden_size = 256;
  config.kv_channels = 16;
  config.max_position_embeddings = 128;
  return config;
}

TransformerConfig LlamaLike() {
  TransformerConfig config = Gpt2Like();
  config.position_embedding = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  config.swiglu = true;
  config.add_bias_linear = false;
  config.num_query_groups = 2;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

Training Train(const TransformerConfig& config, const Case& where, int steps) {
  auto rng = RngTracker::Create(7, {}, false, where.device.is_cuda());
  GptModel model(config, GptModel::Placement{.num_layers = config.num_layers}, GptModel::Groups{},
                 *rng, where.device, where.dtype);
  // Weights that all types hold exactly.
  CopyParameters(MakeModel(config, at::kBFloat16)->parameters(), model.parameters());
  const ParallelContext parallel = ParallelContext::SingleProcess();
  auto ddp = DistributedDataParallel::Create({model.parameters()}, DdpGroups::Of(parallel),
                                             {.grad_reduce_in_fp32 = where.dtype != at::kDouble});
  auto optimizer =
      Optimizer::Create(WholeShards(model.parameters()), GradStatsGroups::Of(parallel, false),
                        {.adam_beta2 = 0.95, .clip_grad = 1.0});
  EXPECT_TRUE(ddp.ok() && optimizer.ok());
  for (size_t i = 0; i < (*optimizer)->param_groups().size(); ++i) {
    const double wd_mult = (*optimizer)->param_groups()[i].identity.wd_mult;
    (*optimizer)->SetGroupLr(static_cast<int>(i), kLr, 0.1 * wd_mult);
  }
  Training run;
  for (int step = 0; step < steps; ++step) {
    Batch batch = RandomBatch(config, 2, 128, 5);
    for (at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.position_ids}) {
      *tensor = tensor->to(where.device);
    }
    (*ddp)->ZeroGradBuffer();
    const at::Tensor loss = at::mean(model.Forward(batch, {}));
    loss.mul(where.loss_scale).backward();
    EXPECT_TRUE((*ddp)->FinishGradSync(0).ok());
    EXPECT_TRUE((*ddp)->CheckBucketNorms().ok());
    if (step == 0) {
      for (const ParameterPtr& p : model.parameters()) {
        run.grads.push_back(
            p->main_grad.to(at::kCPU, at::kDouble, false, /*copy=*/true).div_(where.loss_scale));
      }
    }
    auto prepared = (*optimizer)->PrepareStep(where.loss_scale);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    (*optimizer)->CommitStep(*prepared);
    run.losses.push_back(loss.item<double>());
  }
  for (const ParameterPtr& p : model.parameters()) {
    run.weights.push_back(p->data.detach().to(at::kCPU, at::kDouble, false, /*copy=*/true));
  }
  return run;
}

// |a - b| / |b|, over all elements.
double RelativeError(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).square().sum().item<double>();
    norm += b[i].square().sum().item<double>();
  }
  return std::sqrt(difference / norm);
}

double LargestDifference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, MaxDifference(a[i], b[i]));
  return largest;
}

class GpuParityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    at::globalContext().setAllowTF32CuBLAS(false);
    UseCudaRowOps();
  }
  const Case cpu{at::kCPU, at::kDouble};
};

TEST_F(GpuParityTest, Fp64EqualsTheCpu) {
  for (const TransformerConfig& config : {Gpt2Like(), LlamaLike()}) {
    const Training exact = Train(config, cpu, 5);
    const Training gpu = Train(config, {at::kCUDA, at::kDouble}, 5);
    // Later losses differ a little more: AdamW divides gradients that are zero in theory (a key's
    // bias) by their own size, so their rounding is what moves those weights.
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(gpu.losses[i], exact.losses[i], i < 2 ? 1e-10 : 1e-9) << i;
    }
    EXPECT_LE(RelativeError(gpu.grads, exact.grads), 1e-10);
    EXPECT_LE(LargestDifference(gpu.weights, exact.weights), 1e-9);
  }
}

TEST_F(GpuParityTest, Fp32IsWithinItsRounding) {
  for (const TransformerConfig& config : {Gpt2Like(), LlamaLike()}) {
    const Training exact = Train(config, cpu, 5);
    const Training gpu = Train(config, {at::kCUDA, at::kFloat}, 5);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(gpu.losses[i], exact.losses[i], 1e-5 * exact.losses[i]) << i;
    EXPECT_LE(RelativeError(gpu.grads, exact.grads), 1e-5);
    EXPECT_LE(RelativeError(gpu.weights, exact.weights), 1e-5);
  }
}

TEST_F(GpuParityTest, Bf16IsWithinItsRounding) {
  for (const TransformerConfig& config : {Gpt2Like(), LlamaLike()}) {
    const Training exact = Train(config, cpu, 5);
    const Training cpu_bf16 = Train(config, {at::kCPU, at::kBFloat16}, 5);
    const Training gpu = Train(config, {at::kCUDA, at::kBFloat16}, 5);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(gpu.losses[i], exact.losses[i], 0.01 * exact.losses[i]) << i;
    // As near to the exact gradients as the CPU's own bf16 kernels.
    const double cpu_error = RelativeError(cpu_bf16.grads, exact.grads);
    EXPECT_LE(RelativeError(gpu.grads, exact.grads), 1.5 * cpu_error) << cpu_error;
  }
}

TEST_F(GpuParityTest, Fp16WithALossScaleIsWithinItsRounding) {
  for (const TransformerConfig& config : {Gpt2Like(), LlamaLike()}) {
    const Training exact = Train(config, cpu, 5);
    const Training bf16 = Train(config, {at::kCUDA, at::kBFloat16}, 5);
    const Training gpu = Train(config, {at::kCUDA, at::kHalf, /*loss_scale=*/4096}, 5);
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(gpu.losses[i], exact.losses[i], 0.002 * exact.losses[i]) << i;
    // Three more bits than bf16, and none of them lost to small gradients.
    const double error = RelativeError(gpu.grads, exact.grads);
    EXPECT_LE(error, 0.01);
    EXPECT_LE(error, 0.5 * RelativeError(bf16.grads, exact.grads));
    EXPECT_LE(RelativeError(gpu.weights, exact.weights), 0.01);
  }
}

// The second run draws the same dropout masks. Not bit for bit: sums of the backward pass are
// atomic.
TEST_F(GpuParityTest, RecomputationChangesNothingButRounding) {
  struct Mode {
    RecomputeMode mode;
    int64_t num_layers;
  };
  for (TransformerConfig config : {Gpt2Like(), LlamaLike()}) {
    config.hidden_dropout = 0.1;
    config.attention_dropout = config.swiglu ? 0 : 0.1;  // fused attention, and composed
    for (const auto& [dtype, scale, bound] :
         {std::tuple(at::kDouble, 1.0, 1e-10), std::tuple(at::kBFloat16, 1.0, 5e-3),
          std::tuple(at::kHalf, 4096.0, 1e-3)}) {
      const Case where{at::kCUDA, dtype, scale};
      const Training plain = Train(config, where, 2);
      for (const Mode& mode : {Mode{RecomputeMode::kUniform, 1}, Mode{RecomputeMode::kBlock, 1},
                               Mode{RecomputeMode::kSelective, 1}}) {
        TransformerConfig recomputed = config;
        recomputed.recompute = mode.mode;
        recomputed.recompute_num_layers = mode.num_layers;
        const Training again = Train(recomputed, where, 2);
        SCOPED_TRACE(std::string(at::toString(dtype)) + ", mode " +
                     std::to_string(static_cast<int>(mode.mode)));
        // The first loss comes before any backward pass.
        EXPECT_EQ(again.losses[0], plain.losses[0]);
        EXPECT_NEAR(again.losses[1], plain.losses[1], bound * plain.losses[1]);
        EXPECT_LE(RelativeError(again.grads, plain.grads), bound);
      }
    }
  }
}

}  // namespace
}  // namespace muster
