#include "worker/optim/muon.h"

#include <cmath>
#include <fstream>
#include <string>

#include <ATen/ATen.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/optim/optim_test_util.h"
#include "worker/comm/self_communicator.h"

namespace muster {
namespace {

using Json = nlohmann::json;
using ::testing::UnorderedElementsAre;

OptimizerOptions MuonJob(MuonOptions muon) {
  return {.kind = OptimizerOptions::Kind::kMuon,
          .muon = std::move(muon),
          .clip_grad = 0,
          .param_groups = {.scalar_optimizer = "adam"}};
}

class MuonTest : public ::testing::Test {
 protected:
  std::unique_ptr<Optimizer> Make(const std::vector<ParameterPtr>& params,
                                  const OptimizerOptions& options) {
    auto optimizer = Optimizer::Create(WholeShards(params),
                                       {.dense = self_.get(), .expert = self_.get()}, options);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    return *std::move(optimizer);
  }
  const CommunicatorPtr self_ = MakeSelfCommunicator("tp_pp", 0);
};

TEST_F(MuonTest, FirstStepIsGoldenG7_2) {
  const ParameterPtr p = MakeParam("fc.weight", at::eye(2), at::kFloat);
  auto optimizer = Make({p}, MuonJob({.newton_schulz = {.bf16_iteration = false}}));
  SetGrad(*p, at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2}));
  ASSERT_TRUE(StepOnce(*optimizer, 0.1, 0.0).ok());
  EXPECT_LE(LargestDifference(p->data,
                              at::tensor({1.073663, -0.120800, -0.120263, 0.929025}).view({2, 2})),
            2e-6);
}

TEST_F(MuonTest, ScaleModes) {
  using Mode = MuonOptions::ScaleMode;
  EXPECT_EQ(MuonScale(Mode::kSpectral, 4, 9), 3);
  EXPECT_EQ(MuonScale(Mode::kSpectral, 16, 9), 4);
  EXPECT_EQ(MuonScale(Mode::kUnitRmsNorm, 4, 16), 0.5);
  EXPECT_EQ(MuonScale(Mode::kShapeScaling, 4, 16), 1);
  EXPECT_EQ(MuonScale(Mode::kShapeScaling, 16, 4), 2);
}

TEST_F(MuonTest, TenStepsEqualPyTorch) {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/golden/optimizer/muon.json");
  ASSERT_TRUE(file.good());
  const Json goldens = Json::parse(file);
  auto tensor = [&](const Json& values, const std::string& name) {
    return at::tensor(values[name].get<std::vector<double>>(), at::kDouble)
        .view(goldens["shapes"][name].get<std::vector<int64_t>>());
  };
  for (const auto& [name, golden] : goldens["cases"].items()) {
    for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(name + " " + at::toString(dtype));
      std::vector<ParameterPtr> params;
      for (const auto& [param, shape] : goldens["shapes"].items()) {
        params.push_back(MakeParam(param, tensor(goldens["start"], param).to(dtype), dtype));
        if (param == "word_embeddings.weight")
          params.back()->is_embedding_or_output_parameter = true;
      }
      MuonOptions muon{.momentum = golden["momentum"],
                       .nesterov = golden["nesterov"],
                       .newton_schulz = {.num_steps = golden["ns_steps"], .bf16_iteration = false},
                       .extra_scale = golden["extra"]};
      if (golden["coefficients"] == "simple")
        muon.newton_schulz.coefficients = NewtonSchulzOptions::Coefficients::kSimple;
      if (golden["scale"] == "unit_rms_norm")
        muon.scale_mode = MuonOptions::ScaleMode::kUnitRmsNorm;
      if (golden["scale"] == "shape_scaling")
        muon.scale_mode = MuonOptions::ScaleMode::kShapeScaling;
      if (golden["split_qkv"]) muon.qkv_rows = goldens["qkv_rows"].get<std::vector<int64_t>>();
      OptimizerOptions options = MuonJob(muon);
      options.adam_beta2 = goldens["adam"]["beta2"];
      auto optimizer = Make(params, options);

      for (size_t step = 0; step < goldens["grads"].size(); ++step) {
        for (const ParameterPtr& p : params) SetGrad(*p, tensor(goldens["grads"][step], p->name));
        ASSERT_TRUE(StepOnce(*optimizer, goldens["lrs"][step], goldens["weight_decay"]).ok());
      }
      for (const ParameterPtr& p : params)
        EXPECT_LE(LargestDifference(p->data, tensor(golden["final"], p->name)),
                  dtype == at::kDouble ? 1e-11 : 2e-4)
            << p->name;
    }
  }
}

TEST_F(MuonTest, EachParameterHasTheStatesOfItsOwnOptimizer) {
  const ParameterPtr matrix = MakeParam("fc.weight", Waves({4, 6}, 0, at::kBFloat16), at::kFloat);
  const ParameterPtr bias = MakeParam("fc.bias", Waves({4}, 1, at::kBFloat16), at::kFloat);
  const ParameterPtr head = MakeParam("head.weight", Waves({6, 4}, 2, at::kBFloat16), at::kFloat);
  head->is_embedding_or_output_parameter = true;
  auto optimizer = Make({head, bias, matrix}, MuonJob({}));
  std::vector<std::string> states;
  for (const OptimizerStateTensor& s : optimizer->StateTensors())
    states.push_back(s.kind + " " + s.param);
  EXPECT_THAT(states, UnorderedElementsAre("main_param fc.weight", "momentum_buffer fc.weight",
                                           "main_param fc.bias", "exp_avg fc.bias",
                                           "exp_avg_sq fc.bias", "main_param head.weight",
                                           "exp_avg head.weight", "exp_avg_sq head.weight"));
  ASSERT_EQ(optimizer->param_groups().size(), 3u);
  EXPECT_EQ(optimizer->param_groups()[0].identity.optimizer, "");
  EXPECT_EQ(optimizer->param_groups()[1].identity.optimizer, "adam");  // decays: head.weight
  EXPECT_EQ(optimizer->param_groups()[2].identity.wd_mult, 0);
  for (const ParameterPtr& p : {matrix, bias, head})
    SetGrad(*p, Waves({p->data.sizes().vec()}, 3, at::kFloat));
  ASSERT_TRUE(StepOnce(*optimizer, 0.1, 0.1).ok());
  for (const OptimizerGroupState& group : optimizer->GroupStates()) EXPECT_EQ(group.step, 1);
}

TEST_F(MuonTest, ResumeFromStateTensorsEqualsNoStop) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(at::toString(dtype));
    const at::ScalarType grad_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const ParameterPtr p = MakeParam("fc.weight", Waves({40, 24}, 0, dtype), grad_dtype);
    const ParameterPtr b = MakeParam("fc.bias", Waves({40}, 1, dtype), grad_dtype);
    auto step = [&](Optimizer& optimizer, int i) {
      for (const ParameterPtr& each : {p, b})
        SetGrad(*each, Waves(each->data.sizes().vec(), 10 + i, grad_dtype));
      ASSERT_TRUE(StepOnce(optimizer, 0.05, 0.1).ok());
    };
    auto unbroken = Make({p, b}, MuonJob({}));
    for (int i = 0; i < 2; ++i) step(*unbroken, i);
    const at::Tensor saved_p = p->data.clone(), saved_b = b->data.clone();
    std::vector<at::Tensor> saved;
    for (const OptimizerStateTensor& s : unbroken->StateTensors())
      saved.push_back(s.tensor.clone());
    const auto groups = unbroken->GroupStates();
    step(*unbroken, 2);
    const at::Tensor expected_p = p->data.clone(), expected_b = b->data.clone();

    p->data.copy_(saved_p);
    b->data.copy_(saved_b);
    auto resumed = Make({p, b}, MuonJob({}));
    const auto tensors = resumed->StateTensors();
    ASSERT_EQ(tensors.size(), saved.size());
    for (size_t i = 0; i < saved.size(); ++i) tensors[i].tensor.copy_(saved[i]);
    ASSERT_TRUE(resumed->LoadGroupStates(groups).ok());
    resumed->MainParamsLoaded();
    step(*resumed, 2);
    EXPECT_TRUE(at::equal(p->data, expected_p));
    EXPECT_TRUE(at::equal(b->data, expected_b));
  }
}

TEST_F(MuonTest, ClippingAndUnscalingComeFirst) {
  std::vector<at::Tensor> results;
  for (double loss_scale : {1.0, 8.0}) {
    const ParameterPtr p = MakeParam("fc.weight", Waves({4, 5}, 0, at::kDouble), at::kDouble);
    OptimizerOptions options = MuonJob({});
    options.clip_grad = 0.5;
    auto optimizer = Make({p}, options);
    for (int i = 0; i < 3; ++i) {  // the second step's momentum shows the gradient's length
      SetGrad(*p, Waves({4, 5}, i, at::kDouble) * (1 + 2 * i) * loss_scale);
      SetLr(*optimizer, 0.1, 0);
      const auto prepared = optimizer->PrepareStep(loss_scale);
      ASSERT_TRUE(prepared.ok());
      EXPECT_LT(prepared->clip_coefficient, 1);
      optimizer->CommitStep(*prepared);
      const at::Tensor momentum = optimizer->StateTensors()[0].tensor;
      EXPECT_LE(momentum.norm().item<double>(), 0.5);
    }
    results.push_back(p->data);
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
}

TEST_F(MuonTest, PartsOfAMatrixAreRefused) {
  const ParameterPtr p = MakeParam("fc.weight", Waves({4, 6}, 0, at::kFloat), at::kFloat);
  const OwnedShard half{.parameter = p,
                        .in_param = {0, 12},
                        .data = p->data.view({-1}).narrow(0, 0, 12),
                        .grad = p->main_grad.view({-1}).narrow(0, 0, 12)};
  EXPECT_EQ(Optimizer::Create({half}, {.dense = self_.get(), .expert = self_.get()}, MuonJob({}))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MuonOptionsTest, FromSpec) {
  JobSpec spec;
  spec.model.hidden_size = 64;
  spec.model.num_attention_heads = 8;
  spec.model.num_query_groups = 2;
  spec.optimizer.optimizer = "dist_muon";
  spec.optimizer.muon_use_nesterov = true;
  spec.optimizer.muon_num_ns_steps = 7;
  spec.optimizer.muon_coefficient_type = "simple";
  spec.optimizer.muon_matmul_precision = "high";
  spec.optimizer.muon_scale_mode = "shape_scaling";
  spec.optimizer.muon_tp_mode = "blockwise";
  const auto options = OptimizerOptions::FromSpec(spec);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->kind, OptimizerOptions::Kind::kMuon);
  EXPECT_TRUE(options->layer_wise);
  EXPECT_EQ(options->param_groups.scalar_optimizer, "adam");
  EXPECT_EQ(options->muon.momentum, 0.9);
  EXPECT_TRUE(options->muon.nesterov);
  EXPECT_EQ(options->muon.newton_schulz.num_steps, 7);
  EXPECT_EQ(options->muon.newton_schulz.coefficients, NewtonSchulzOptions::Coefficients::kSimple);
  EXPECT_FALSE(options->muon.newton_schulz.bf16_iteration);
  EXPECT_EQ(options->muon.scale_mode, MuonOptions::ScaleMode::kShapeScaling);
  EXPECT_EQ(options->muon.tp_mode, MuonOptions::TpMode::kBlockwise);
  EXPECT_EQ(options->muon.qkv_rows, (std::vector<int64_t>{32, 8, 8}));

  spec.optimizer.optimizer = "muon";
  spec.optimizer.muon_split_qkv = false;
  EXPECT_FALSE(OptimizerOptions::FromSpec(spec)->layer_wise);
  EXPECT_TRUE(OptimizerOptions::FromSpec(spec)->muon.qkv_rows.empty());
  spec.parallel.use_distributed_optimizer = true;
  EXPECT_EQ(OptimizerOptions::FromSpec(spec).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
