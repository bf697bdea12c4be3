#include "worker/optim/param_groups.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParameterPtr Param(const std::string& name, int dims) {
  auto p = std::make_shared<Parameter>();
  p->name = name;
  p->data = at::ones(std::vector<int64_t>(dims, 2));
  return p;
}

// "identity: names" a group.
std::vector<std::string> Text(const std::vector<ParamGroup>& groups) {
  std::vector<std::string> lines;
  for (const ParamGroup& group : groups) {
    std::vector<std::string> names;
    for (const ParameterPtr& p : group.params) names.push_back(p->name);
    lines.push_back(group.identity.ToString() + ": " + absl::StrJoin(names, " "));
  }
  return lines;
}

std::vector<ParamGroup> Build(const std::vector<ParameterPtr>& params,
                              const ParamGroupOptions& options) {
  auto groups = BuildParamGroups(params, StandardOverrideRules(options));
  EXPECT_TRUE(groups.ok()) << groups.status();
  return *std::move(groups);
}

TEST(ParamGroupsTest, BiasesAndOneDimensionalParametersDoNotDecay) {
  // A 2-D parameter named .bias does not decay either.
  const auto groups = Build({Param("norm.weight", 1), Param("fc.weight", 2), Param("fc.bias", 1),
                             Param("odd.bias", 2), Param("emb.weight", 2)},
                            {});
  EXPECT_THAT(Text(groups),
              ElementsAre("max_lr=default min_lr=default wd_mult=1 expert=0 decoupled_lr=0: "
                          "fc.weight emb.weight",
                          "max_lr=default min_lr=default wd_mult=0 expert=0 decoupled_lr=0: "
                          "norm.weight fc.bias odd.bias"));
  EXPECT_TRUE(groups[0].default_config);
  EXPECT_TRUE(groups[1].default_config);
}

TEST(ParamGroupsTest, QkLayernormDecaysOnRequest) {
  const ParameterPtr weight = Param("q_layernorm.weight", 1), bias = Param("q_layernorm.bias", 1);
  weight->is_qk_layernorm = bias->is_qk_layernorm = true;
  EXPECT_EQ(Build({weight, bias}, {}).size(), 1u);
  const auto groups = Build({weight, bias}, {.apply_wd_to_qk_layernorm = true});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params[0], weight);
  EXPECT_EQ(groups[1].params[0], bias);
}

TEST(ParamGroupsTest, DecoupledLrAndExpertsAreGroupsOfTheirOwnInOrder) {
  const ParameterPtr emb = Param("emb.weight", 2), emb_bias = Param("emb.bias", 1);
  emb->is_embedding_or_output_parameter = emb_bias->is_embedding_or_output_parameter = true;
  const ParameterPtr expert = Param("experts.fc.weight", 2);
  expert->allreduce = false;
  const auto groups = Build({Param("fc.bias", 1), emb_bias, emb, expert, Param("fc.weight", 2)},
                            {.decoupled_lr = 0.5, .decoupled_min_lr = 0.25});
  // No override first (the expert appeared before fc.weight), then (max_lr, min_lr),
  // (max_lr, min_lr, wd_mult), (wd_mult).
  EXPECT_THAT(
      Text(groups),
      ElementsAre(
          "max_lr=default min_lr=default wd_mult=1 expert=1 decoupled_lr=0: experts.fc.weight",
          "max_lr=default min_lr=default wd_mult=1 expert=0 decoupled_lr=0: fc.weight",
          "max_lr=0.5 min_lr=0.25 wd_mult=1 expert=0 decoupled_lr=1: emb.weight",
          "max_lr=0.5 min_lr=0.25 wd_mult=0 expert=0 decoupled_lr=1: emb.bias",
          "max_lr=default min_lr=default wd_mult=0 expert=0 decoupled_lr=0: fc.bias"));
  EXPECT_FALSE(groups[2].default_config);
}

TEST(ParamGroupsTest, ContradictingRulesAreRefused) {
  auto all = [](const Parameter&) { return true; };
  const auto groups = BuildParamGroups(
      {Param("fc.weight", 2)}, {{.name = "one", .matches = all, .values = {.wd_mult = 0.5}},
                                {.name = "two", .matches = all, .values = {.wd_mult = 2.0}}});
  EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(groups.status().message()), HasSubstr("rule two sets wd_mult=2"));
}

TEST(ParamGroupsTest, MuonLeavesVectorsAndEmbeddingsToAnotherOptimizer) {
  const ParameterPtr emb = Param("emb.weight", 2);
  emb->is_embedding_or_output_parameter = true;
  const auto groups = Build({emb, Param("fc.bias", 1), Param("fc.weight", 2), Param("conv", 3)},
                            {.scalar_optimizer = "adam"});
  EXPECT_THAT(Text(groups),
              ElementsAre("max_lr=default min_lr=default wd_mult=1 expert=0 decoupled_lr=0: "
                          "fc.weight",
                          "max_lr=default min_lr=default wd_mult=1 expert=0 decoupled_lr=0 "
                          "optimizer=adam: emb.weight conv",
                          "max_lr=default min_lr=default wd_mult=0 expert=0 decoupled_lr=0 "
                          "optimizer=adam: fc.bias"));
}

TEST(ParamGroupsTest, EveryRankHoldsEveryGroupInOneOrder) {
  at::set_num_threads(1);
  const ParamGroupOptions options{.decoupled_lr = 0.5, .decoupled_min_lr = 0.25};
  RunRanks(3, [&](CommunicatorPtr world) -> absl::Status {
    // Embedding, layers with experts, output layer: stages of a pipeline; the last without a group
    // of the schedule's own rate.
    std::vector<ParameterPtr> params;
    if (world->rank() == 0) params = {Param("emb.weight", 2), Param("fc.bias", 1)};
    if (world->rank() == 1) params = {Param("experts.fc.weight", 2), Param("fc.weight", 2)};
    if (world->rank() == 2) params = {Param("head.weight", 2)};
    if (world->rank() == 1) params[0]->allreduce = false;
    if (world->rank() != 1) params[0]->is_embedding_or_output_parameter = true;
    auto groups = Build(params, options);
    RETURN_IF_ERROR(UniteGroups(*world, at::kCPU, groups));
    const std::string rank = std::to_string(world->rank());
    const std::string no_lr = "max_lr=default min_lr=default ";
    EXPECT_THAT(
        Text(groups),
        ElementsAre(
            no_lr +
                "wd_mult=1 expert=1 decoupled_lr=0: " + (rank == "1" ? "experts.fc.weight" : ""),
            no_lr + "wd_mult=1 expert=0 decoupled_lr=0: " + (rank == "1" ? "fc.weight" : ""),
            "max_lr=0.5 min_lr=0.25 wd_mult=1 expert=0 decoupled_lr=1: " +
                std::string(rank == "0"   ? "emb.weight"
                            : rank == "2" ? "head.weight"
                                          : ""),
            no_lr + "wd_mult=0 expert=0 decoupled_lr=0: " + (rank == "0" ? "fc.bias" : "")));
    EXPECT_TRUE(groups[0].default_config);
    EXPECT_FALSE(groups[2].default_config);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace muster
