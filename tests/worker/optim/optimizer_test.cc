#include "worker/optim/optimizer.h"

#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/self_communicator.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class OptimizerTest : public ::testing::Test {
 protected:
  // 1-D parameters with these values and gradients; 1-D: no weight decay by the standard rule.
  ParameterPtr Add(const std::string& name, at::Tensor values, at::Tensor grad) {
    auto p = std::make_shared<Parameter>();
    p->name = name;
    p->data = values;
    p->main_grad = grad;
    p->main_grad_is_zero = false;
    params_.push_back(p);
    return p;
  }
  std::unique_ptr<Optimizer> Make(const OptimizerOptions& options) {
    auto optimizer = Optimizer::Create(WholeShards(params_),
                                       {.dense = self_.get(), .expert = self_.get()}, options);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    return *std::move(optimizer);
  }
  StepResult Step(Optimizer& optimizer, double lr, double weight_decay, double loss_scale = 1) {
    for (size_t g = 0; g < optimizer.param_groups().size(); ++g)
      optimizer.SetGroupLr(static_cast<int>(g), lr, weight_decay);
    const auto prepared = optimizer.PrepareStep(loss_scale);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return optimizer.CommitStep(*prepared);
  }

  const CommunicatorPtr self_ = MakeSelfCommunicator("tp_pp", 0);
  std::vector<ParameterPtr> params_;
};

TEST_F(OptimizerTest, AdamIsGoldenG7_1) {
  const ParameterPtr p = Add("p", at::ones({1}, at::kDouble), at::full({1}, 0.5, at::kDouble));
  auto optimizer = Make({.clip_grad = 0});
  Step(*optimizer, 0.1, 0.01);
  EXPECT_NEAR(p->data.item<double>(), 0.899000002, 5e-10);
  Step(*optimizer, 0.1, 0.01);
  EXPECT_NEAR(p->data.item<double>(), 0.798101004, 5e-10);
}

TEST_F(OptimizerTest, ClippingIsGoldenG7_3) {
  EXPECT_NEAR(ClipCoefficient(1.0, 5.0), 0.19999996, 1e-12);
  EXPECT_EQ(ClipCoefficient(1.0, 0.5), 1.0);
  EXPECT_EQ(ClipCoefficient(0.0, 5.0), 1.0);
  EXPECT_EQ(ClipCoefficient(1.0, std::nan("")), 1.0);
  // Through a step of SGD without momentum: p moves by -lr c g.
  const ParameterPtr p = Add("p", at::zeros({2}, at::kDouble), at::tensor({3.0, 4.0}, at::kDouble));
  auto optimizer =
      Make({.kind = OptimizerOptions::Kind::kSgd, .sgd_momentum = 0, .clip_grad = 1.0});
  const StepResult result = Step(*optimizer, 1.0, 0.0);
  EXPECT_DOUBLE_EQ(*result.grad_norm, 5.0);
  EXPECT_NEAR(p->data[0].item<double>(), -3 * 0.19999996, 1e-12);
  EXPECT_NEAR(p->data[1].item<double>(), -4 * 0.19999996, 1e-12);
  EXPECT_EQ(p->main_grad[0].item<double>(), 3.0);  // folded into the step, not written
}

TEST_F(OptimizerTest, PrepareChangesNothing) {
  const ParameterPtr p = Add("p", at::ones({3}), at::ones({3}));
  auto optimizer = Make({});
  ASSERT_TRUE(optimizer->PrepareStep().ok());
  EXPECT_TRUE(at::equal(p->data, at::ones({3})));
  EXPECT_EQ(optimizer->GroupStates()[0].step, 0);
}

TEST_F(OptimizerTest, LossScaleIsDividedOutBeforeClipping) {
  const ParameterPtr p = Add("p", at::zeros({2}), at::tensor({3.0f, 4.0f}) * 1024);
  auto optimizer = Make({.kind = OptimizerOptions::Kind::kSgd, .sgd_momentum = 0, .clip_grad = 10});
  const StepResult result = Step(*optimizer, 1.0, 0.0, 1024.0);
  EXPECT_DOUBLE_EQ(*result.grad_norm, 5.0);
  EXPECT_TRUE(at::equal(p->data, at::tensor({-3.0f, -4.0f})));
}

TEST_F(OptimizerTest, NonFiniteGradientSkipsTheStepOnlyWhereAsked) {
  const ParameterPtr p =
      Add("p", at::ones({2}), at::tensor({1.0f, std::numeric_limits<float>::infinity()}));
  auto fp16 = Make({.skip_non_finite = true});
  const StepResult skipped = Step(*fp16, 0.1, 0.0);
  EXPECT_FALSE(skipped.success);
  EXPECT_FALSE(skipped.grad_norm.has_value());
  EXPECT_EQ(fp16->GroupStates()[0].step, 0);
  EXPECT_TRUE(at::equal(p->data, at::ones({2})));

  auto fp32 = Make({});
  EXPECT_TRUE(Step(*fp32, 0.1, 0.0).success);
}

TEST_F(OptimizerTest, NormAboveTheThresholdSkipsTheStepAndIsReported) {
  const ParameterPtr p = Add("p", at::ones({3}), at::tensor({3.0f, 4.0f, 0.0f}));
  auto optimizer = Make({.log_num_zeros_in_grad = true, .grad_norm_skip_threshold = 4.5});
  const StepResult skipped = Step(*optimizer, 0.1, 0.0);
  EXPECT_FALSE(skipped.success);
  EXPECT_DOUBLE_EQ(*skipped.grad_norm, 5.0);
  EXPECT_EQ(skipped.num_zeros, 1);
  EXPECT_EQ(optimizer->GroupStates()[0].step, 0);
  EXPECT_TRUE(at::equal(p->data, at::ones({3})));
  for (const OptimizerStateTensor& state : optimizer->StateTensors())
    EXPECT_TRUE(at::equal(state.tensor, at::zeros({3}))) << state.kind;

  // At the threshold it is updated; the norm is of unscaled gradients.
  auto at_threshold = Make({.grad_norm_skip_threshold = 5.0});
  EXPECT_TRUE(Step(*at_threshold, 0.1, 0.0).success);
  auto scaled = Make({.grad_norm_skip_threshold = 4.5});
  EXPECT_TRUE(Step(*scaled, 0.1, 0.0, /*loss_scale=*/2).success);
}

// A rank skips for another's norm, too.
TEST_F(OptimizerTest, FlagOfAnotherRankSkipsTheStep) {
  const ParameterPtr p = Add("p", at::ones({2}), at::ones({2}));
  auto optimizer = Make({});
  auto prepared = optimizer->PrepareStep();
  ASSERT_TRUE(prepared.ok());
  prepared->norm_too_large = true;
  EXPECT_FALSE(optimizer->CommitStep(*prepared).success);
  EXPECT_TRUE(at::equal(p->data, at::ones({2})));
}

TEST_F(OptimizerTest, ZerosAreCountedAndSharedCopiesLeftOut) {
  Add("a", at::ones({4}), at::tensor({0.0f, 1.0f, 0.0f, 2.0f}));
  Add("tied copy", at::ones({2}), at::tensor({0.0f, 100.0f}))->shared = true;
  auto optimizer = Make({.log_num_zeros_in_grad = true});
  const auto prepared = optimizer->PrepareStep();
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(*prepared->num_zeros, 2);
  EXPECT_DOUBLE_EQ(prepared->grad_norm, std::sqrt(5.0));
}

TEST_F(OptimizerTest, ResumeFromStateTensorsEqualsNoStop) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    SCOPED_TRACE(at::toString(dtype));
    params_.clear();
    auto values = [&](int n, double phase) {
      return (at::arange(n, at::kDouble) + phase).sin().to(dtype);
    };
    const ParameterPtr w =
        Add("w", values(5000, 0).view({50, 100}), values(5000, 1).view({50, 100}));
    const ParameterPtr b = Add("b", values(7, 2), values(7, 3));
    auto unbroken = Make({});
    for (int i = 0; i < 3; ++i) Step(*unbroken, 0.01, 0.1);

    // What a checkpoint holds.
    std::vector<at::Tensor> model, state;
    for (const ParameterPtr& p : params_) model.push_back(p->data.clone());
    for (const OptimizerStateTensor& s : unbroken->StateTensors())
      state.push_back(s.tensor.clone());
    const auto groups = unbroken->GroupStates();
    for (int i = 0; i < 2; ++i) Step(*unbroken, 0.01, 0.1);
    std::vector<at::Tensor> expected;
    for (const ParameterPtr& p : params_) expected.push_back(p->data.clone());

    for (size_t i = 0; i < params_.size(); ++i) params_[i]->data.fill_(0.5);
    auto resumed = Make({});
    if (dtype == at::kFloat || dtype == at::kDouble)  // no copies: the model is the main params
      for (size_t i = 0; i < params_.size(); ++i) params_[i]->data.copy_(model[i]);
    auto tensors = resumed->StateTensors();
    ASSERT_EQ(tensors.size(), state.size());
    for (size_t i = 0; i < state.size(); ++i) tensors[i].tensor.copy_(state[i]);
    ASSERT_TRUE(resumed->LoadGroupStates(groups).ok());
    resumed->MainParamsLoaded();
    for (size_t i = 0; i < params_.size(); ++i) EXPECT_TRUE(at::equal(params_[i]->data, model[i]));
    for (int i = 0; i < 2; ++i) Step(*resumed, 0.01, 0.1);
    for (size_t i = 0; i < params_.size(); ++i)
      EXPECT_TRUE(at::equal(params_[i]->data, expected[i])) << params_[i]->name;
  }
}

TEST_F(OptimizerTest, ReloadTakesMainsFromTheModel) {
  const ParameterPtr p = Add("p", at::ones({3}, at::kBFloat16), at::zeros({3}, at::kBFloat16));
  auto optimizer = Make({});
  p->data.fill_(3.0);
  optimizer->ReloadMainParams();
  Step(*optimizer, 0.1, 0.0);
  EXPECT_TRUE(p->data.eq(3.0).all().item<bool>());
  EXPECT_NEAR(*optimizer->ParamsNorm(), 3 * std::sqrt(3.0), 1e-12);
}

TEST_F(OptimizerTest, LoadOfOtherGroupsIsRefusedAndChangesNothing) {
  Add("w", at::ones({2, 2}), at::ones({2, 2}));
  Add("b", at::ones({2}), at::ones({2}));
  auto optimizer = Make({});
  const absl::Status status =
      optimizer->LoadGroupStates({{.identity = {.wd_mult = 1.0}, .step = 7}});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("wd_mult=0"));
  EXPECT_EQ(optimizer->GroupStates()[0].step, 0);
}

TEST_F(OptimizerTest, ThreadsDoNotChangeABit) {
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (int threads : {1, 3}) {
    at::set_num_threads(threads);
    params_.clear();
    const at::Tensor values = at::arange(100'003, at::kDouble).sin();
    const ParameterPtr p = Add("p", values.to(at::kFloat), values.cos().to(at::kBFloat16));
    auto optimizer = Make({});
    for (int i = 0; i < 3; ++i) Step(*optimizer, 0.01, 0.1);
    results.push_back(p->data);
  }
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST_F(OptimizerTest, GradientTypesOfEveryPrecision) {
  struct Row {
    at::ScalarType model, grad;
  };
  for (const Row& row :
       {Row{at::kFloat, at::kFloat}, Row{at::kBFloat16, at::kFloat},
        Row{at::kBFloat16, at::kBFloat16}, Row{at::kHalf, at::kFloat}, Row{at::kHalf, at::kHalf},
        Row{at::kDouble, at::kDouble}, Row{at::kDouble, at::kFloat}}) {
    SCOPED_TRACE(testing::Message() << at::toString(row.model) << " " << at::toString(row.grad));
    params_.clear();
    const ParameterPtr p = Add("p", at::ones({9001}, row.model), at::full({9001}, 0.25, row.grad));
    auto optimizer = Make({.clip_grad = 0});
    Step(*optimizer, 0.5, 0.0);  // Adam's first step is lr long
    EXPECT_TRUE(
        at::allclose(p->data.to(at::kDouble), at::full({9001}, 0.5, at::kDouble), 1e-3, 1e-3));
  }
}

TEST(OptimizerOptionsTest, FromSpec) {
  JobSpec spec;
  spec.optimizer.optimizer = "sgd";
  spec.optimizer.clip_grad = 0.5;
  spec.training.fp16 = true;
  const auto options = OptimizerOptions::FromSpec(spec);
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->kind, OptimizerOptions::Kind::kSgd);
  EXPECT_EQ(options->clip_grad, 0.5);
  EXPECT_TRUE(options->skip_non_finite);
}

}  // namespace
}  // namespace muster
