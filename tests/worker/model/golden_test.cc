// The GPT against plain PyTorch: same weights and batch (tests/golden/make_gpt_goldens.py).

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "test_support.h"

namespace muster {
namespace {

// Gradients by |a - b| <= tolerance * max(|b|, 1e-3 of the global norm).
void ExpectGradient(const at::Tensor& got, const at::Tensor& want, double global_norm,
                    double tolerance) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  const at::Tensor limit = b.abs().clamp_min(1e-3 * global_norm) * tolerance;
  const at::Tensor excess = (a - b).abs() / limit;
  EXPECT_TRUE(at::isfinite(a).all().item<bool>());
  EXPECT_LE(excess.max().item<double>(), 1.0);
}

double GlobalNorm(const GptGolden& golden) {
  double squares = 0;
  for (const auto& [name, tensor] : golden.tensors) {
    if (name.rfind("grad.", 0) == 0) squares += tensor.square().sum().item<double>();
  }
  return std::sqrt(squares);
}

class GptGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  GptGolden golden_ = LoadGptGolden(GetParam());
  Batch batch_ = golden_.MakeBatch();

  void CheckFirstStep(at::ScalarType dtype, double tolerance, bool main_grads) {
    auto model = MakeGoldenModel(golden_, dtype);
    if (main_grads) AttachMainGrads(model->parameters(), dtype);
    Batch without_labels = batch_;
    without_labels.labels = at::Tensor();
    const at::Tensor logits = model->Forward(without_labels, {});
    ASSERT_EQ(logits.sizes(), golden_.at("logits").sizes());
    EXPECT_LE(MaxDifference(logits, golden_.at("logits")), tolerance);

    const at::Tensor losses = model->Forward(batch_, {});
    ASSERT_EQ(losses.sizes(), golden_.at("losses").sizes());
    EXPECT_LE(MaxDifference(losses, golden_.at("losses")),
              tolerance * golden_.at("losses").max().item<double>());
    losses.mean().backward();
    const double norm = GlobalNorm(golden_);
    // The reference is exact (fp64), and PyTorch's own fp32 gradients miss it by 1.0e-5 and 1.5e-5:
    // two fp32 programs may lie twice as far apart.
    const double grad_tolerance =
        dtype == at::kDouble
            ? tolerance
            : std::max(tolerance, 2 * golden_.document["fp32_gradient_error"].get<double>());
    for (const ParameterPtr& parameter : model->parameters()) {
      SCOPED_TRACE(parameter->name);
      EXPECT_EQ(parameter->data.grad().defined(), !main_grads);
      const at::Tensor got = main_grads ? parameter->main_grad : parameter->data.grad();
      ASSERT_TRUE(got.defined());
      ExpectGradient(got, golden_.at("grad." + parameter->name), norm, grad_tolerance);
    }
  }
};

TEST_P(GptGoldenTest, LogitsLossesAndGradientsInFp32) { CheckFirstStep(at::kFloat, 1e-5, false); }

TEST_P(GptGoldenTest, LogitsLossesAndGradientsInFp64) { CheckFirstStep(at::kDouble, 1e-10, false); }

TEST_P(GptGoldenTest, MainGradsAreOverwrittenAndEqual) {
  CheckFirstStep(at::kFloat, 1e-5, true);
  CheckFirstStep(at::kDouble, 1e-10, true);
}

TEST_P(GptGoldenTest, SecondMicrobatchAddsToMainGrads) {
  auto model = MakeGoldenModel(golden_, at::kDouble);
  AttachMainGrads(model->parameters(), at::kDouble);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    (model->Forward(batch_, {}).mean() / 2).backward();
  }
  for (const ParameterPtr& parameter : model->parameters()) {
    SCOPED_TRACE(parameter->name);
    ExpectGradient(parameter->main_grad, golden_.at("grad." + parameter->name), GlobalNorm(golden_),
                   1e-10);
  }
}

TEST_P(GptGoldenTest, Bf16WithFp32MainGradsIsNear) {
  auto model = MakeGoldenModel(golden_, at::kBFloat16);
  AttachMainGrads(model->parameters(), at::kFloat);
  const at::Tensor losses = model->Forward(batch_, {});
  EXPECT_EQ(losses.scalar_type(), at::kFloat);
  EXPECT_NEAR(losses.mean().item<double>(), golden_.at("losses").mean().item<double>(), 0.01);
  losses.mean().backward();
  double squares = 0;
  for (const ParameterPtr& parameter : model->parameters()) {
    squares += (parameter->main_grad.to(at::kDouble) - golden_.at("grad." + parameter->name))
                   .square()
                   .sum()
                   .item<double>();
  }
  EXPECT_LE(std::sqrt(squares), 0.02 * GlobalNorm(golden_));
}

// A plain AdamW (Loshchilov and Hutter 2019), written apart from the engine's optimizer.
class PlainAdamW {
 public:
  explicit PlainAdamW(const nlohmann::json& options) : options_(options) {}
  void Step(const std::vector<ParameterPtr>& parameters) {
    at::NoGradGuard no_grad;
    ++step_;
    const double beta1 = options_["betas"][0], beta2 = options_["betas"][1];
    const double lr = options_["lr"], eps = options_["eps"];
    for (const ParameterPtr& parameter : parameters) {
      at::Tensor& p = parameter->data;
      at::Tensor g = p.grad();
      at::Tensor& m = first_.try_emplace(parameter->name, at::zeros_like(p)).first->second;
      at::Tensor& v = second_.try_emplace(parameter->name, at::zeros_like(p)).first->second;
      m.mul_(beta1).add_(g, 1 - beta1);
      v.mul_(beta2).addcmul_(g, g, 1 - beta2);
      if (p.dim() > 1) p.mul_(1 - lr * options_["weight_decay"].get<double>());
      const at::Tensor scale = (v / (1 - std::pow(beta2, step_))).sqrt_().add_(eps);
      p.addcdiv_(m / (1 - std::pow(beta1, step_)), scale, -lr);
      p.mutable_grad() = at::Tensor();
    }
  }

 private:
  const nlohmann::json options_;
  std::map<std::string, at::Tensor> first_, second_;
  int step_ = 0;
};

TEST_P(GptGoldenTest, TenAdamWStepsFollowPyTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const bool fp32 = dtype == at::kFloat;
    auto model = MakeGoldenModel(golden_, dtype);
    PlainAdamW adam(golden_.document["adamw"]);
    const auto want =
        golden_.document[fp32 ? "step_losses_fp32" : "step_losses_fp64"].get<std::vector<double>>();
    for (double loss_wanted : want) {
      const at::Tensor loss = model->Forward(batch_, {}).mean();
      EXPECT_NEAR(loss.item<double>(), loss_wanted, (fp32 ? 1e-5 : 1e-10) * loss_wanted);
      loss.backward();
      adam.Step(model->parameters());
    }
    if (!fp32) continue;
    const double limit =
        0.01 * golden_.document["adamw"]["lr"].get<double>() * static_cast<double>(want.size());
    for (const ParameterPtr& parameter : model->parameters()) {
      SCOPED_TRACE(parameter->name);
      if (parameter->name.find("linear_qkv.bias") != std::string::npos) {
        // A key bias has no effect on the softmax: its gradient is rounding noise, which Adam
        // scales up. Its queries' and values' biases are checked.
        const at::Tensor difference =
            (parameter->data - golden_.at("final." + parameter->name)).abs().view({-1, 3, 8});
        EXPECT_LE(difference.select(1, 0).max().item<double>(), limit);
        EXPECT_LE(difference.select(1, 2).max().item<double>(), limit);
        continue;
      }
      EXPECT_LE(MaxDifference(parameter->data, golden_.at("final." + parameter->name)), limit);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, GptGoldenTest, testing::Values("gpt2", "llama"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster
