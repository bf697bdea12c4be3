// Side losses: values by their definitions, gradients by finite differences, and ranks that hold a
// part of the tokens each against one rank that holds all.
#include "worker/moe/router_losses.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "gtest/gtest.h"
#include "tests/worker/moe/router_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/parallel_context.h"

namespace muster {
namespace {

struct Case {
  std::string name;
  MoeConfig config;
  bool padded = false;
  bool seq_major = true;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, const auto& change) -> Case& {
    cases.push_back({.name = std::move(name), .config = RouterConfig(6, 2)});
    change(cases.back().config);
    return cases.back();
  };
  const SideLoss aux = {.kind = BalancingLoss::kAuxLoss, .coeff = 0.7};
  const SideLoss seq = {.kind = BalancingLoss::kSeqAuxLoss, .coeff = 0.5};
  const SideLoss global = {.kind = BalancingLoss::kGlobalAuxLoss, .coeff = 0.3};
  const auto all = [=](MoeConfig& c) {
    c.side_losses = {aux, seq, global};
    c.z_loss_coeff = 0.1;
  };
  const auto sigmoid = [=](MoeConfig& c) {
    all(c);
    c.score = RouterScore::kSigmoid;
  };
  add("aux", [=](MoeConfig& c) { c.side_losses = {aux}; });
  add("seq", [=](MoeConfig& c) { c.side_losses = {seq}; });
  add("seq, rows by sample", [=](MoeConfig& c) { c.side_losses = {seq}; }).seq_major = false;
  add("global", [=](MoeConfig& c) { c.side_losses = {global}; });
  add("z", [](MoeConfig& c) { c.z_loss_coeff = 0.1; });
  add("z, padded", [](MoeConfig& c) { c.z_loss_coeff = 0.1; }).padded = true;
  add("all", all);
  add("all, padded", all).padded = true;
  add("all, sigmoid", sigmoid);
  add("all, sigmoid, padded", sigmoid).padded = true;
  add("all, sigmoid, bias", [=](MoeConfig& c) {
    sigmoid(c);
    c.expert_bias = true;
  });
  add("all, groups", [=](MoeConfig& c) {
    all(c);
    c.num_groups = 3;
    c.group_topk = 1;
  });
  add("all, pre_softmax, capacity", [=](MoeConfig& c) {
    all(c);
    c.pre_softmax = true;
    c.capacity_factor = 0.5;
  });
  return cases;
}

at::Tensor Padding(const Case& one, int64_t tokens) {
  if (!one.padded) return {};
  at::Tensor padding = at::zeros({tokens}, at::kBool);
  for (int64_t i = 1; i < tokens; i += 3) padding[i] = true;
  return padding;
}

double Sum(const std::map<std::string, double>& losses) {
  double sum = 0;
  for (const auto& [name, loss] : losses) sum += loss;
  return sum;
}

double CoeffOf(const MoeConfig& config, const std::string& name) {
  if (name == "z_loss") return config.z_loss_coeff;
  for (const SideLoss& loss : config.side_losses) {
    if (name == "load_balancing_loss" && loss.kind == BalancingLoss::kAuxLoss) return loss.coeff;
    if (name == "seq_load_balancing_loss" && loss.kind == BalancingLoss::kSeqAuxLoss)
      return loss.coeff;
    if (name == "global_load_balancing_loss" && loss.kind == BalancingLoss::kGlobalAuxLoss)
      return loss.coeff;
  }
  return 0;
}

TEST(RouterLossesTest, ValuesAndGradientsFollowTheDefinitions) {
  constexpr double kScale = 0.6, kStep = 1e-6;
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const RoutedLayout tokens = {.batch = 2, .seq = 5, .seq_major = one.seq_major};
    const at::Tensor padding = Padding(one, tokens.rows());
    const at::Tensor logits = RandomLogits(tokens.rows(), 6, 17);
    LogitsRouter router(one.config);
    router.experts->SetSideLossScale(99);  // what holds at the time of the backward pass counts
    const at::Tensor probs = router.router->Forward(logits, tokens, padding, true).probs;
    router.experts->SetSideLossScale(kScale);
    const at::Tensor upstream = RandomLogits(tokens.rows(), 6, 18).detach();
    (probs * upstream).sum().backward();

    const auto by_definition = SideLossesByDefinition(one.config, logits, tokens, padding);
    const auto logged =
        *router.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, 1, 1);
    EXPECT_EQ(logged.size(), by_definition.size());
    for (const auto& [name, loss] : by_definition)
      EXPECT_NEAR(logged.at(name) * CoeffOf(one.config, name), loss, 1e-12) << name;

    // Of the weights and of all side losses together.
    const auto objective = [&](const at::Tensor& at) {
      at::NoGradGuard no_grad;
      LogitsRouter fresh(one.config);
      const at::Tensor weights = fresh.router->Forward(at, tokens, padding, true).probs;
      return (weights * upstream).sum().item<double>() +
             kScale * Sum(SideLossesByDefinition(one.config, at, tokens, padding));
    };
    for (int64_t i = 0; i < logits.numel(); ++i) {
      at::Tensor up = logits.detach().clone(), down = up.clone();
      up.view({-1})[i] += kStep;
      down.view({-1})[i] -= kStep;
      const double difference = (objective(up) - objective(down)) / (2 * kStep);
      EXPECT_NEAR(logits.grad().view({-1})[i].item<double>(), difference, 2e-8) << i;
    }
  }
}

TEST(RouterLossesTest, PerTokenModeWeighsByValidTokens) {
  for (Case one : Cases()) {
    SCOPED_TRACE(one.name);
    const RoutedLayout tokens = {.batch = 2, .seq = 5, .seq_major = one.seq_major};
    const at::Tensor padding = Padding(one, tokens.rows());
    const auto gradient = [&](bool per_token, double scale) {
      one.config.per_token_loss = per_token;
      LogitsRouter router(one.config);
      router.experts->SetSideLossScale(scale);
      const at::Tensor logits = RandomLogits(tokens.rows(), 6, 17);
      router.router->Forward(logits, tokens, padding, true).probs.sum().backward();
      return logits.grad();
    };
    const double valid = one.padded ? 7 : 10;
    EXPECT_LE(LargestDifference(gradient(true, 0.5), gradient(false, 0.5 * valid)), 1e-12);
  }
}

TEST(RouterLossesTest, NothingOutsideOfTraining) {
  for (const Case& one : Cases()) {
    LogitsRouter router(one.config);
    const at::Tensor logits = RandomLogits(10, 6, 17);
    const RoutedLayout tokens = {.batch = 2, .seq = 5, .seq_major = true};
    router.router->Forward(logits, tokens, {}, false).probs.sum().backward();
    EXPECT_TRUE(router.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, 1, 1)
                    ->empty());
  }
}

// Global counts are the mean over the microbatches so far; a new step begins with none.
TEST(RouterLossesTest, GlobalCountsRunOverTheStep) {
  MoeConfig config = RouterConfig(6, 2);
  config.side_losses = {{.kind = BalancingLoss::kGlobalAuxLoss, .coeff = 1}};
  LogitsRouter router(config);
  const RoutedLayout tokens = {.batch = 1, .seq = 10, .seq_major = true};
  const auto loss = [&](uint64_t seed) {
    const at::Tensor logits = RandomLogits(10, 6, seed);
    router.router->Forward(logits, tokens, {}, true).probs.sum().backward();
    return router.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, 1, 1)
        ->at("global_load_balancing_loss");
  };
  const auto counts_and_scores = [&](uint64_t seed) {
    const at::Tensor logits = RandomLogits(10, 6, seed).detach();
    const at::Tensor map =
        at::zeros_like(logits).scatter_(1, std::get<1>(at::topk(logits, 2, 1)), 1.0);
    return std::pair(map.sum(0), at::softmax(logits, 1).sum(0));
  };
  const auto [c1, p1] = counts_and_scores(1);
  const auto [c2, p2] = counts_and_scores(2);
  const double factor = 6.0 / (2 * 100);
  const double first = factor * (p1 * c1).sum().item<double>();
  const double second = factor * (p2 * (c1 + c2) / 2).sum().item<double>();
  EXPECT_NEAR(loss(1), first, 1e-12);
  EXPECT_NEAR(loss(2), first + second, 1e-12);  // the log adds up
  router.experts->BeginStep();
  EXPECT_NEAR(loss(1), first, 1e-12);
}

// ---- ranks

struct Layout {
  int tp_cp = 1, dp = 1;
  int size() const { return tp_cp * dp; }
};

// What one rank finds for its part of the whole tokens (S, B, E).
struct RankResult {
  at::Tensor gradient, padding;
  std::map<std::string, double> logged;
};

// Rank r = d tp_cp + p holds part p of the sequence of the samples of d. Whole tokens: (S, B, E).
std::vector<RankResult> RunLayout(const Case& one, const Layout& layout, const at::Tensor& whole,
                                  const at::Tensor& padding) {
  std::vector<RankResult> results(static_cast<size_t>(layout.size()));
  RunRanks(layout.size(), [&](const CommunicatorPtr& world) -> absl::Status {
    const int rank = world->rank(), d = rank / layout.tp_cp;
    std::vector<int> members;
    for (int p = 0; p < layout.tp_cp; ++p) members.push_back(d * layout.tp_cp + p);
    absl::StatusOr<CommunicatorPtr> tp_cp =
        world->Split("tp_cp" + std::to_string(d), std::move(members));
    if (!tp_cp.ok()) return tp_cp.status();
    const int64_t seq = whole.size(0) / layout.tp_cp, batch = whole.size(1) / layout.dp;
    const int64_t p = rank % layout.tp_cp;
    const auto mine = [&](const at::Tensor& tensor) {
      return tensor.narrow(0, p * seq, seq).narrow(1, d * batch, batch).contiguous();
    };
    ExpertParallel groups;
    groups.tp_cp = layout.tp_cp > 1 ? tp_cp->get() : nullptr;
    groups.tp_dp_cp = layout.size() > 1 ? world.get() : nullptr;
    LogitsRouter router(one.config, at::kDouble, groups);
    router.experts->SetSideLossScale(0.6);
    const at::Tensor logits =
        mine(whole).view({seq * batch, whole.size(2)}).set_requires_grad(true);
    const at::Tensor my_padding = padding.defined() ? mine(padding).view({-1}) : at::Tensor();
    // No gradient but that of the side losses.
    (router.router
         ->Forward(logits, {.batch = batch, .seq = seq, .seq_major = true}, my_padding, true)
         .probs *
     0.0)
        .sum()
        .backward();
    RankResult& result = results[static_cast<size_t>(rank)];
    result.gradient = logits.grad().view({seq, batch, whole.size(2)});
    result.logged =
        *router.experts->ReduceSideLosses(ParallelContext::SingleProcess(), at::kCPU, 1, 1);
    return absl::OkStatus();
  });
  return results;
}

TEST(RouterLossesTest, RanksOfASequenceAddUpToTheWhole) {
  for (const Case& one : Cases()) {
    if (one.config.capacity_factor != 0) continue;  // dropping looks at a rank's own tokens
    SCOPED_TRACE(one.name);
    const at::Tensor whole = RandomLogits(16, 6, 5).detach().view({8, 2, 6});
    at::Tensor padding = Padding(one, 16);
    if (padding.defined()) padding = padding.view({8, 2});
    const RankResult alone = RunLayout(one, {}, whole, padding)[0];
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      const std::vector<RankResult> parts = RunLayout(one, {.tp_cp = ranks}, whole, padding);
      std::vector<at::Tensor> gradients;
      std::map<std::string, double> sums;
      for (const RankResult& part : parts) {
        gradients.push_back(part.gradient);
        for (const auto& [name, value] : part.logged)
          sums[name] += name == "z_loss" ? value / ranks : value;
      }
      // A z-loss is the mean of the ranks' own means, whatever they are padded with.
      if (!(one.padded && one.config.z_loss_coeff != 0)) {
        EXPECT_LE(LargestDifference(at::cat(gradients, 0), alone.gradient), 1e-13);
        ASSERT_EQ(sums.size(), alone.logged.size());
        for (const auto& [name, value] : alone.logged) EXPECT_NEAR(sums[name], value, 1e-12);
        continue;
      }
      for (const auto& [name, value] : alone.logged) {
        if (name == "z_loss") continue;
        EXPECT_NEAR(sums[name], value, 1e-12) << name;
      }
    }
  }
}

// Every rank of a sequence weighs by the tokens of all of it.
TEST(RouterLossesTest, PerTokenModeWeighsByTheTokensOfTheGroup) {
  for (Case one : Cases()) {
    if (one.padded || one.config.capacity_factor != 0) continue;
    SCOPED_TRACE(one.name);
    const at::Tensor whole = RandomLogits(16, 6, 5).detach().view({8, 2, 6});
    const std::vector<RankResult> plain = RunLayout(one, {.tp_cp = 2}, whole, {});
    one.config.per_token_loss = true;
    const std::vector<RankResult> by_token = RunLayout(one, {.tp_cp = 2}, whole, {});
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_LE(LargestDifference(by_token[rank].gradient, plain[rank].gradient * 16), 1e-12);
      EXPECT_EQ(by_token[rank].logged, plain[rank].logged);
    }
  }
}

// The global loss counts over all ranks; the others only over those of their sequences.
TEST(RouterLossesTest, GlobalCountsSpanTheReplicas) {
  Case one = {.name = "global", .config = RouterConfig(6, 2)};
  one.config.side_losses = {{.kind = BalancingLoss::kGlobalAuxLoss, .coeff = 0.3}};
  const at::Tensor whole = RandomLogits(32, 6, 5).detach().view({8, 4, 6});
  const RankResult alone = RunLayout(one, {}, whole, {})[0];
  for (const Layout& layout : {Layout{.tp_cp = 1, .dp = 4}, Layout{.tp_cp = 2, .dp = 2}}) {
    const std::vector<RankResult> parts = RunLayout(one, layout, whole, {});
    double sum = 0;
    std::vector<at::Tensor> gradients;
    for (int d = 0; d < layout.dp; ++d) {
      std::vector<at::Tensor> of_replica;
      for (int p = 0; p < layout.tp_cp; ++p) {
        const RankResult& part = parts[static_cast<size_t>(d * layout.tp_cp + p)];
        of_replica.push_back(part.gradient);
        sum += part.logged.at("global_load_balancing_loss");
      }
      gradients.push_back(at::cat(of_replica, 0));
    }
    EXPECT_NEAR(sum, alone.logged.at("global_load_balancing_loss"), 1e-12);
    EXPECT_LE(LargestDifference(at::cat(gradients, 1), alone.gradient), 1e-14);
  }
  one.config.side_losses[0].kind = BalancingLoss::kAuxLoss;
  const std::vector<RankResult> replicas = RunLayout(one, {.tp_cp = 2, .dp = 2}, whole, {});
  const RankResult own = RunLayout(one, {}, whole.narrow(1, 0, 2).contiguous(), {})[0];
  EXPECT_LE(
      LargestDifference(at::cat({replicas[0].gradient, replicas[1].gradient}, 0), own.gradient),
      1e-14);
}

}  // namespace
}  // namespace muster
