// Ten steps of AdamW and SGD against PyTorch (tests/golden/make_optimizer_goldens.py).
#include <fstream>
#include <string>

#include <ATen/ATen.h>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/comm/self_communicator.h"
#include "worker/optim/optimizer.h"

namespace muster {
namespace {

using Json = nlohmann::json;

Json LoadGoldens() {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/golden/optimizer/optimizer.json");
  EXPECT_TRUE(file.good());
  return Json::parse(file);
}

at::Tensor ToTensor(const Json& values, const Json& shape, at::ScalarType dtype) {
  const auto flat = values.get<std::vector<double>>();
  return at::tensor(flat, at::kDouble).view(shape.get<std::vector<int64_t>>()).to(dtype);
}

TEST(OptimizerGoldenTest, TenStepsEqualPyTorch) {
  const Json goldens = LoadGoldens();
  const std::vector<std::string> names = {"linear.weight", "linear.bias", "norm.weight",
                                          "head.weight"};
  const CommunicatorPtr self = MakeSelfCommunicator("tp_pp", 0);
  for (const auto& [name, golden] : goldens["cases"].items()) {
    SCOPED_TRACE(name);
    const bool fp64 = golden["dtype"] == "float64";
    const bool bf16 = golden["bf16"];
    const at::ScalarType model_dtype = fp64 ? at::kDouble : bf16 ? at::kBFloat16 : at::kFloat;
    std::vector<ParameterPtr> params;
    for (const std::string& n : names) {
      auto p = std::make_shared<Parameter>();
      p->name = n;
      p->data = ToTensor(goldens["start"][n], goldens["shapes"][n], model_dtype);
      params.push_back(p);
    }
    OptimizerOptions options{.adam_beta1 = goldens["adam"]["beta1"],
                             .adam_beta2 = goldens["adam"]["beta2"],
                             .adam_eps = goldens["adam"]["eps"],
                             .sgd_momentum = goldens["sgd"]["momentum"],
                             .clip_grad = golden["clip_grad"]};
    if (golden["optimizer"] == "sgd") options.kind = OptimizerOptions::Kind::kSgd;
    auto optimizer = Optimizer::Create(WholeShards(params),
                                       {.dense = self.get(), .expert = self.get()}, options);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status();
    const double tolerance = fp64 ? 1e-13 : 2e-6;

    for (size_t step = 0; step < goldens["grads"].size(); ++step) {
      for (const ParameterPtr& p : params) {
        p->main_grad =
            ToTensor(goldens["grads"][step][p->name], goldens["shapes"][p->name], model_dtype);
        p->main_grad_is_zero = false;
      }
      const auto& groups = (*optimizer)->param_groups();
      for (size_t g = 0; g < groups.size(); ++g) {
        (*optimizer)
            ->SetGroupLr(static_cast<int>(g), goldens["lrs"][step],
                         goldens["weight_decay"].get<double>() * groups[g].identity.wd_mult);
      }
      const auto prepared = (*optimizer)->PrepareStep();
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      EXPECT_NEAR(prepared->grad_norm, golden["grad_norms"][step].get<double>(), 1e-6);
      EXPECT_TRUE((*optimizer)->CommitStep(*prepared).success);
    }
    for (const ParameterPtr& p : params) {
      SCOPED_TRACE(p->name);
      const at::Tensor expected =
          ToTensor(golden["final"][p->name], goldens["shapes"][p->name], at::kDouble);
      at::Tensor actual = p->data;
      if (bf16) {
        EXPECT_EQ(p->data.scalar_type(), at::kBFloat16);
        for (const OptimizerStateTensor& state : (*optimizer)->StateTensors())
          if (state.kind == "main_param" && state.param == p->name) actual = state.tensor;
        EXPECT_TRUE(at::equal(p->data, actual.to(at::kBFloat16)));
      }
      const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
      EXPECT_TRUE(error.le(expected.abs() * tolerance + tolerance).all().item<bool>())
          << "largest error " << error.max().item<double>();
    }
  }
}

}  // namespace
}  // namespace muster
