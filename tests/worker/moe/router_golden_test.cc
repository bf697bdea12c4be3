// The router beside Megatron-core's (tests/golden/make_moe_goldens.py), in fp32 and fp64.
#include <fstream>

#include <ATen/ATen.h>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/worker/moe/router_support.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

using nlohmann::json;

const json& Golden() {
  static const json* const golden = [] {
    std::ifstream file(MUSTER_SOURCE_DIR "/tests/golden/moe/router.json");
    return new json(json::parse(file));
  }();
  return *golden;
}

BalancingLoss KindOf(const std::string& type) {
  if (type == "seq_aux_loss") return BalancingLoss::kSeqAuxLoss;
  if (type == "global_aux_loss") return BalancingLoss::kGlobalAuxLoss;
  EXPECT_EQ(type, "aux_loss");
  return BalancingLoss::kAuxLoss;
}

MoeConfig ConfigOf(const json& settings) {
  MoeConfig config = RouterConfig(Golden()["experts"], settings.value("moe_router_topk", 2));
  if (settings.value("moe_router_score_function", "softmax") == "sigmoid")
    config.score = RouterScore::kSigmoid;
  config.pre_softmax = settings.value("moe_router_pre_softmax", false);
  if (settings.contains("moe_router_topk_scaling_factor"))
    config.scaling_factor = settings["moe_router_topk_scaling_factor"].get<double>();
  config.num_groups = settings.value("moe_router_num_groups", 0);
  config.group_topk = settings.value("moe_router_group_topk", 0);
  config.expert_bias = settings.value("moe_router_enable_expert_bias", false);
  config.z_loss_coeff = settings.value("moe_z_loss_coeff", 0.0);
  config.per_token_loss = settings.value("calculate_per_token_loss", false);
  config.capacity_factor = settings.value("moe_expert_capacity_factor", 0.0);
  config.pad_to_capacity = settings.value("moe_pad_expert_input_to_capacity", false);
  if (settings.value("moe_token_drop_policy", "probs") == "position")
    config.drop_policy = DropPolicy::kPosition;

  json types = settings.value("moe_router_load_balancing_type", json("aux_loss"));
  json coeffs = settings.value("moe_aux_loss_coeff", json(0.0));
  config.sinkhorn = types == "sinkhorn";
  if (config.sinkhorn) return config;
  if (!types.is_array()) types = json::array({types});
  if (!coeffs.is_array()) coeffs = json::array({coeffs});
  for (size_t i = 0; i < types.size(); ++i) {
    if (coeffs[i] != 0.0)
      config.side_losses.push_back({.kind = KindOf(types[i]), .coeff = coeffs[i]});
  }
  return config;
}

at::Tensor Rows(const json& numbers, int64_t width, at::ScalarType dtype) {
  const auto values = numbers.get<std::vector<double>>();
  return at::tensor(values, at::kDouble).view({-1, width}).to(dtype);
}

void ExpectLike(const json& one) {
  const std::string dtype_name = one["dtype"];
  SCOPED_TRACE(one["name"].get<std::string>() + " " + dtype_name);
  const at::ScalarType dtype = dtype_name == "float64" ? at::kDouble : at::kFloat;
  const double bound = dtype == at::kDouble ? 1e-13 : 2e-6;
  const json& settings = one["settings"];
  const int64_t experts = Golden()["experts"];

  LogitsRouter under_test(ConfigOf(settings), dtype);
  under_test.experts->SetSideLossScale(Golden()["scale"]);
  if (one.contains("expert_bias")) {
    under_test.experts->biases()[0].bias.copy_(
        Rows(one["expert_bias"], experts, at::kFloat).view({-1}));
  }
  for (const json& pass : one["microbatches"]) {
    const at::Tensor logits = Rows(pass["logits"], experts, dtype).set_requires_grad(true);
    at::Tensor padding;
    if (pass.contains("padding")) padding = Rows(pass["padding"], 1, at::kBool).view({-1});
    const RoutedLayout tokens = {.batch = settings.value("batch", Golden()["batch"].get<int64_t>()),
                                 .seq = Golden()["seq"],
                                 .seq_major = true};
    const RoutedTokens routed =
        under_test.router->Forward(logits, tokens, padding, settings.value("training", true));
    (routed.probs * Rows(pass["upstream"], experts, dtype)).sum().backward();
    EXPECT_EQ(routed.probs.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(routed.map, Rows(pass["map"], experts, at::kBool)));
    EXPECT_LE(LargestDifference(routed.probs, Rows(pass["probs"], experts, dtype)), bound);
    EXPECT_LE(LargestDifference(logits.grad(), Rows(pass["dlogits"], experts, dtype)), bound);
  }

  const int64_t passes = static_cast<int64_t>(one["microbatches"].size());
  const auto logged =
      under_test.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, passes, 1);
  ASSERT_TRUE(logged.ok()) << logged.status();
  EXPECT_EQ(logged->size(), one["logged"].size());
  for (const auto& [name, value] : one["logged"].items()) {
    ASSERT_TRUE(logged->contains(name)) << name;
    const double expected = value.get<double>() / static_cast<double>(passes);
    EXPECT_NEAR(logged->at(name), expected, bound * std::abs(expected)) << name;
  }
  if (!one.contains("counts")) return;
  const ExpertBias& bias = under_test.experts->biases()[0];
  EXPECT_TRUE(at::equal(bias.counts, Rows(one["counts"], experts, at::kFloat).view({-1})));
  ASSERT_TRUE(under_test.experts->PrepareBiases(ParallelContext::SingleProcess()).ok());
  under_test.experts->CommitBiases(1e-3);
  EXPECT_LE(LargestDifference(bias.bias, Rows(one["updated_bias"], experts, at::kFloat).view({-1})),
            1e-8);
}

TEST(RouterGoldenTest, EveryCaseIsMegatrons) {
  ASSERT_GE(Golden()["cases"].size(), 70U);
  for (const json& one : Golden()["cases"]) ExpectLike(one);
}

}  // namespace
}  // namespace muster
