// What a router chooses and how it weighs (reference 14.4), one process.
#include "worker/moe/router.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/moe/router_support.h"
#include "worker/moe/router_choice.h"
#include "worker/moe/token_counts.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using Numbers = std::vector<int64_t>;

constexpr RoutedLayout kFour = {.batch = 1, .seq = 4, .seq_major = true};

// Reference G14.4.
at::Tensor GoldenLogits() {
  return at::tensor(
             {1.0, 2.0, 0.0, -1.0, 0.0, 1.0, 3.0, 2.0, 2.0, 2.5, 0.0, 1.0, 1.0, 0.0, 0.5, 3.0},
             at::kDouble)
      .view({4, 4});
}

at::Tensor Leaf(const at::Tensor& values) { return values.clone().set_requires_grad(true); }

// Experts of each token, ascending.
std::vector<Numbers> Chosen(const at::Tensor& map) {
  std::vector<Numbers> chosen(static_cast<size_t>(map.size(0)));
  for (int64_t t = 0; t < map.size(0); ++t) {
    for (int64_t e = 0; e < map.size(1); ++e)
      if (map[t][e].item<bool>()) chosen[static_cast<size_t>(t)].push_back(e);
  }
  return chosen;
}

RoutedTokens RouteGolden(const MoeConfig& config) {
  return LogitsRouter(config).router->Forward(GoldenLogits(), kFour, {}, false);
}

// A row a token: expert, weight, expert, weight.
void ExpectWeights(const at::Tensor& probs, const std::vector<std::vector<double>>& chosen) {
  for (size_t t = 0; t < chosen.size(); ++t) {
    for (size_t i = 0; i < chosen[t].size(); i += 2) {
      const auto expert = static_cast<int64_t>(chosen[t][i]);
      EXPECT_NEAR(probs[static_cast<int64_t>(t)][expert].item<double>(), chosen[t][i + 1], 5e-7)
          << "token " << t << ", expert " << expert;
    }
  }
}

TEST(RouterTest, SoftmaxOverTheChosen) {
  const RoutedTokens routed = RouteGolden(RouterConfig(4, 2));
  EXPECT_THAT(Chosen(routed.map),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{0, 1}, Numbers{0, 3}));
  ExpectWeights(routed.probs, {{1, .731059, 0, .268941},
                               {2, .731059, 3, .268941},
                               {1, .622459, 0, .377541},
                               {3, .880797, 0, .119203}});
  EXPECT_NEAR(routed.probs.sum().item<double>(), 4, 1e-12);
}

TEST(RouterTest, PreSoftmaxIsNotNormalisedAgain) {
  MoeConfig config = RouterConfig(4, 2);
  config.pre_softmax = true;
  ExpectWeights(RouteGolden(config).probs, {{1, .643914, 0, .236883},
                                            {2, .643914, 3, .236883},
                                            {1, .523082, 0, .317265},
                                            {3, .789137, 0, .106798}});
}

TEST(RouterTest, SigmoidIsNormalisedOverTheChosen) {
  MoeConfig config = RouterConfig(4, 2);
  config.score = RouterScore::kSigmoid;
  ExpectWeights(RouteGolden(config).probs, {{1, .546449, 0, .453551},
                                            {2, .519575, 3, .480425},
                                            {1, .512007, 0, .487993},
                                            {3, .565785, 0, .434215}});
}

TEST(RouterTest, ExpertBiasMovesTheChoiceButNotTheWeights) {
  MoeConfig config = RouterConfig(4, 2);
  config.score = RouterScore::kSigmoid;
  config.expert_bias = true;
  LogitsRouter biased(config);
  ASSERT_EQ(biased.experts->biases().size(), 1U);
  EXPECT_EQ(biased.experts->biases()[0].name, "router.expert_bias");
  biased.experts->biases()[0].bias[0] = 0.5;
  const RoutedTokens routed = biased.router->Forward(GoldenLogits(), kFour, {}, false);
  EXPECT_THAT(Chosen(routed.map),
              ElementsAre(Numbers{0, 1}, Numbers{0, 2}, Numbers{0, 1}, Numbers{0, 3}));
  ExpectWeights(routed.probs, {{0, .453551, 1, .546449},
                               {0, .344217, 2, .655783},
                               {0, .487993, 1, .512007},
                               {0, .434215, 3, .565785}});
}

TEST(RouterTest, GroupsLimitTheChoice) {
  MoeConfig config = RouterConfig(4, 2);
  config.num_groups = 2;
  config.group_topk = 1;
  EXPECT_THAT(Chosen(RouteGolden(config).map),
              ElementsAre(Numbers{0, 1}, Numbers{2, 3}, Numbers{0, 1}, Numbers{2, 3}));
}

TEST(RouterTest, CountsMoveTheExpertBias) {
  MoeConfig config = RouterConfig(4, 2);
  config.score = RouterScore::kSigmoid;
  config.expert_bias = true;
  LogitsRouter biased(config);
  biased.router->Forward(Leaf(GoldenLogits()), kFour, {}, true);
  const ExpertBias& bias = biased.experts->biases()[0];
  EXPECT_TRUE(at::equal(bias.counts, at::tensor({3.0F, 2.0F, 1.0F, 2.0F})));
  ASSERT_TRUE(biased.experts->PrepareBiases(ParallelContext::SingleProcess()).ok());
  biased.experts->CommitBiases(1e-3);
  EXPECT_TRUE(at::equal(bias.bias, at::tensor({-1e-3F, 0.0F, 1e-3F, 0.0F})));
  biased.experts->BeginStep();
  EXPECT_TRUE(at::equal(bias.counts, at::zeros({4})));
}

TEST(RouterTest, SideLossesOfTheGolden) {
  MoeConfig config = RouterConfig(4, 2);
  config.side_losses = {{.kind = BalancingLoss::kAuxLoss, .coeff = 0.01}};
  config.z_loss_coeff = 1e-3;
  LogitsRouter balanced(config);
  balanced.router->Forward(Leaf(GoldenLogits()), kFour, {}, true).probs.sum().backward();
  const auto logged =
      *balanced.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, 1, 1);
  EXPECT_NEAR(logged.at("load_balancing_loss") * 0.01, .009817791, 5e-10);
  EXPECT_NEAR(logged.at("z_loss") * 1e-3, .009544105, 2e-9);
}

TEST(RouterTest, CapacityOfAnExpert) {
  EXPECT_EQ(ExpertCapacity(4, 2, 4, 0.5), 1);
  EXPECT_EQ(ExpertCapacity(4, 2, 4, 1.0), 2);
  EXPECT_EQ(ExpertCapacity(4, 2, 4, 1.25), 3);
}

TEST(RouterTest, CapacityKeepsTheLargestWeights) {
  MoeConfig config = RouterConfig(4, 2);
  config.capacity_factor = 0.5;
  const RoutedTokens routed = RouteGolden(config);
  EXPECT_THAT(Chosen(routed.map), ElementsAre(Numbers{1}, Numbers{2}, Numbers{0}, Numbers{3}));
  EXPECT_EQ((routed.probs != 0).sum().item<int64_t>(), 4);
}

TEST(RouterTest, PositionFollowsTheTiesOfTopk) {
  MoeConfig config = RouterConfig(4, 2);
  config.capacity_factor = 1;
  config.drop_policy = DropPolicy::kPosition;
  EXPECT_THAT(Chosen(RouteGolden(config).map),
              ElementsAre(Numbers{1}, Numbers{2, 3}, Numbers{0, 1}, Numbers{0, 3}));
}

TEST(RouterTest, PaddedExpertsGetAsManyRowsAsTheyHaveRoomFor) {
  MoeConfig config = RouterConfig(4, 2);
  config.pad_to_capacity = true;
  for (const auto& [factor, rows] :
       std::vector<std::pair<double, int64_t>>{{0.5, 1}, {1.0, 2}, {1.25, 3}, {4.0, 4}}) {
    config.capacity_factor = factor;
    const RoutedTokens routed = RouteGolden(config);
    EXPECT_TRUE(at::equal(routed.map.sum(0), at::full({4}, rows, at::kLong))) << factor;
    EXPECT_LE((routed.probs != 0).sum().item<int64_t>(), 8);
  }
}

TEST(RouterTest, DroppedTokensAreNotCountedForTheBias) {
  MoeConfig config = RouterConfig(4, 2);
  config.score = RouterScore::kSigmoid;
  config.expert_bias = true;
  config.capacity_factor = 0.5;
  LogitsRouter biased(config);
  biased.router->Forward(Leaf(GoldenLogits()), kFour, {}, true);
  EXPECT_TRUE(at::equal(biased.experts->biases()[0].counts, at::ones({4})));
}

// The first run of a recomputed segment has recording off, the second has it on (recompute.h).
TEST(RouterTest, ARecomputedForwardIsCountedOnce) {
  MoeConfig config = RouterConfig(4, 2);
  config.score = RouterScore::kSigmoid;
  config.expert_bias = true;
  config.side_losses = {{.kind = BalancingLoss::kAuxLoss, .coeff = 0.01},
                        {.kind = BalancingLoss::kGlobalAuxLoss, .coeff = 0.01}};
  LogitsRouter once(config), twice(config);
  const at::Tensor a = Leaf(GoldenLogits()), b = Leaf(GoldenLogits());
  RoutedTokens first;
  {
    at::NoGradGuard no_grad;
    first = twice.router->Forward(b, kFour, {}, true);
  }
  EXPECT_TRUE(at::equal(twice.experts->biases()[0].counts, at::zeros({4})));
  const RoutedTokens second = twice.router->Forward(b, kFour, {}, true);
  EXPECT_TRUE(at::equal(first.map, second.map));
  EXPECT_TRUE(at::equal(first.probs, second.probs));
  second.probs.sum().backward();
  once.router->Forward(a, kFour, {}, true).probs.sum().backward();
  EXPECT_TRUE(at::equal(once.experts->biases()[0].counts, twice.experts->biases()[0].counts));
  EXPECT_TRUE(at::equal(a.grad(), b.grad()));
  const ParallelContext alone = ParallelContext::SingleProcess();
  EXPECT_EQ(*once.experts->ReduceSideLosses(alone, at::kCPU, 1, 1),
            *twice.experts->ReduceSideLosses(alone, at::kCPU, 1, 1));
}

TEST(RouterTest, TiesGoToTheLowestExpert) {
  const at::Tensor scores =
      at::tensor({1.0, 2.0, 2.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0, 1.0, 3.0, 1.0},
                 at::kDouble)
          .view({3, 5});
  const at::Tensor expected = at::tensor({1, 2, 4, 0, 1, 2, 0, 3, 1}, at::kLong).view({3, 3});
  EXPECT_TRUE(at::equal(TopkColumns(scores, 3), expected));
  EXPECT_TRUE(at::equal(TopkColumns(scores.to(at::kFloat), 3), expected));
  // Where nothing ties it is what topk says, and what the sort of other devices says.
  const at::Tensor random = at::rand({300, 64}, at::kDouble);
  const at::Tensor sorted = std::get<1>(at::sort(random, true, 1, true)).narrow(1, 0, 8);
  EXPECT_TRUE(at::equal(TopkColumns(random, 8), std::get<1>(at::topk(random, 8, 1))));
  EXPECT_TRUE(at::equal(TopkColumns(random, 8), sorted));
  // Transposed memory is read right.
  EXPECT_TRUE(at::equal(TopkColumns(random.t(), 4), TopkColumns(random.t().contiguous(), 4)));
}

TEST(RouterTest, AnyNumberIsRoutedToDifferentExperts) {
  at::Tensor logits = at::full({4, 4}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  logits[1] = std::numeric_limits<double>::infinity();
  logits[2] = -std::numeric_limits<double>::infinity();
  const RoutedTokens routed =
      LogitsRouter(RouterConfig(4, 2)).router->Forward(logits, kFour, {}, false);
  EXPECT_TRUE(at::equal(routed.map.sum(1), at::full({4}, 2, at::kLong)));
}

TEST(RouterTest, SinkhornEvensOutRowsAndColumns) {
  const at::Tensor logits = RandomLogits(64, 8, 3).detach().to(at::kFloat);
  const at::Tensor normal = SinkhornNormalized(logits);
  // The turns stop at a mean change of 1e-4 of the columns' factors, which are about 1 / 8.
  EXPECT_LE(LargestDifference(normal.sum(0), at::full({8}, 1.0 / 8)), 1e-4);
  EXPECT_LE(LargestDifference(normal.sum(1), at::full({64}, 1.0 / 64)), 1e-3);
}

TEST(RouterTest, JitterMultipliesTheRoutersInput) {
  MoeConfig config = RouterConfig(8, 1);
  config.pre_softmax = true;
  config.jitter = 0.25;
  const at::Tensor x = at::full({1000, 8}, 4.0, at::kDouble).set_requires_grad(true);
  const RoutedLayout tokens = {.batch = 1, .seq = 1000, .seq_major = true};
  LogitsRouter first(config), again(config);
  const RoutedTokens routed = first.router->Forward(x, tokens, {}, true);
  // Equal logits get any expert as their largest.
  EXPECT_GT(routed.map.sum(0).min().item<int64_t>(), 60);
  // The same states draw the same numbers; the next pass draws others.
  EXPECT_TRUE(at::equal(again.router->Forward(x, tokens, {}, true).probs, routed.probs));
  EXPECT_FALSE(at::equal(again.router->Forward(x, tokens, {}, true).probs, routed.probs));
  // p = 1 / sum exp(4 (u_j - u_max)): between 1 / 8 and 1 / (1 + 7 exp(-2)).
  const at::Tensor p = routed.probs.sum(1);
  EXPECT_GE(p.min().item<double>(), 1.0 / 8);
  EXPECT_LE(p.max().item<double>(), 1 / (1 + 7 * std::exp(-2.0)));
  p.sum().backward();
  EXPECT_GT(x.grad().abs().max().item<double>(), 0);
}

TEST(RouterTest, GateInTheRoutersType) {
  MoeConfig config = RouterConfig(8, 2);
  config.router_in_fp32 = true;
  const auto parameter = [](at::IntArrayRef sizes, uint64_t seed) {
    auto made = std::make_shared<Parameter>();
    made->data = at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat)
                     .to(at::kBFloat16)
                     .set_requires_grad(true);
    made->main_grad = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
    return made;
  };
  const ParameterPtr weight = parameter({8, 16}, 1), bias = parameter({8}, 2);
  ExpertState experts;
  const TopKRouter router(TopKRouter::Options{.config = config,
                                              .name = "router",
                                              .weight = weight,
                                              .bias = bias,
                                              .groups = {},
                                              .experts = &experts,
                                              .jitter = {}});
  const at::Tensor x = parameter({12, 16}, 3)->data;
  const at::Tensor upstream = at::randn({12, 8}, at::kFloat);
  const RoutedTokens routed =
      router.Forward(x, {.batch = 1, .seq = 12, .seq_major = true}, {}, true);
  ASSERT_EQ(routed.probs.scalar_type(), at::kFloat);
  (routed.probs * upstream).sum().backward();

  const at::Tensor x32 = Leaf(x.detach().to(at::kFloat)),
                   b32 = Leaf(bias->data.detach().to(at::kFloat));
  const at::Tensor w32 = Leaf(weight->data.detach().to(at::kFloat));
  const at::Tensor logits = at::matmul(x32, w32.t()) + b32;
  const auto [values, choice] = at::topk(logits, 2, 1);
  const at::Tensor probs = at::zeros_like(logits).scatter(1, choice, at::softmax(values, 1));
  (probs * upstream).sum().backward();
  EXPECT_LE(LargestDifference(routed.probs, probs), 1e-5);
  EXPECT_LE(LargestDifference(weight->main_grad, w32.grad()), 1e-4);
  EXPECT_LE(LargestDifference(bias->main_grad, b32.grad()), 1e-5);
  EXPECT_LE(LargestDifference(x.grad(), x32.grad().to(at::kBFloat16)), 1e-2);
}

}  // namespace
}  // namespace muster
