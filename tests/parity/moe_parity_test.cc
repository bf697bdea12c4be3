// The parity matrix, mixtures of experts, in fp64: rounding in fp32 may send a token to another
// expert in another layout.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/parity/parity_settings.h"

namespace muster {
namespace {

const Settings kAuxLoss = {"model.moe_aux_loss_coeff=0.02", "model.moe_z_loss_coeff=0.001"};
const Settings kSigmoid = {"model.moe_router_score_function=sigmoid",
                           "model.moe_router_enable_expert_bias=true",
                           "model.moe_router_topk_scaling_factor=1.5"};
const Settings kSharedExpert = {"model.moe_shared_expert_intermediate_size=48"};

// Against one process.
void ExpectMoeParity(const Settings& model, const std::vector<Layout>& layouts) {
  ParityModel parity(kMoe + Settings{"training.fp64=true"} + model);
  const Curve one = parity.Run({});
  ASSERT_EQ(one.steps.size(), 10u);
  ASSERT_LT(one.steps.back().lm_loss.value(), one.steps.front().lm_loss.value());
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    ExpectSame(parity.Run(layout.settings), one, Fp64Bounds());
  }
}

// The layouts of experts alone.
const std::vector<Layout>& ExpertLayouts() {
  static const std::vector<Layout> layouts = {
      {"ep2, allgather", World(2) + Ep(2)},
      {"ep2, alltoall", World(2) + Ep(2) + kAllToAll},
      {"ep4, alltoall, grouped", World(4) + Ep(4) + kAllToAll + kGroupedGemm},
      {"dp2 ep2", World(4) + Ep(2)},
      {"one process, grouped", kGroupedGemm}};
  return layouts;
}
// Those in which a sequence is spread over tensor parallel ranks too.
const std::vector<Layout>& SequenceParallelLayouts() {
  static const std::vector<Layout> layouts = {
      {"ep2 etp2", World(4) + Tp(2) + kSequenceParallel + Ep(2, 2) + kAllToAll},
      {"ep2 etp2, allgather", World(4) + Tp(2) + kSequenceParallel + Ep(2, 2)},
      {"etp2", World(2) + Tp(2) + kSequenceParallel + Ep(1, 2)},
      {"tp2, experts whole", World(2) + Tp(2) + kSequenceParallel + Ep(1, 1) + kAllToAll},
      {"tp2 ep2", World(2) + Tp(2) + kSequenceParallel + Ep(2) + kAllToAll},
      {"tp2 ep2 dp2", World(4) + Tp(2) + kSequenceParallel + Ep(2) + kAllToAll + kGroupedGemm}};
  return layouts;
}
std::vector<Layout> AllLayouts() {
  std::vector<Layout> all = ExpertLayouts();
  all.insert(all.end(), SequenceParallelLayouts().begin(), SequenceParallelLayouts().end());
  return all;
}

TEST(MoeParityTest, Softmax) { ExpectMoeParity(kAuxLoss, AllLayouts()); }
TEST(MoeParityTest, SoftmaxLlama) {
  ExpectMoeParity(kLlama + kMoe + kAuxLoss + Settings{"model.moe_router_pre_softmax=true"},
                  AllLayouts());
}
TEST(MoeParityTest, Sigmoid) { ExpectMoeParity(kSigmoid + kAuxLoss, AllLayouts()); }
TEST(MoeParityTest, SharedExpert) {
  ExpectMoeParity(kAuxLoss + kSharedExpert + Settings{"model.moe_shared_expert_gate=true"},
                  AllLayouts());
}
TEST(MoeParityTest, SequenceAuxLoss) {
  ExpectMoeParity(
      {"model.moe_router_load_balancing_type=seq_aux_loss", "model.moe_aux_loss_coeff=0.02"},
      AllLayouts());
}

TEST(MoeParityTest, WithPipelineContextAndDataParallelism) {
  ExpectMoeParity(
      kAuxLoss,
      {{"dp2 ep2 pp2", World(4) + Pp(2) + Ep(2) + kAllToAll},
       {"dp2 ep2 pp2 v2, overlapped", World(4) + Pp(2) + Vpp(2) + Ep(2) + kOverlapGradReduce},
       {"tp2 ep2 dp2 pp2, sp", World(8) + Tp(2) + kSequenceParallel + Pp(2) + Ep(2) + kAllToAll},
       {"dp2 ep2, distributed optimizer", World(2) + Ep(2) + kDistributedOptimizer + kOverlapAll},
       {"dp4 ep2, distributed optimizer", World(4) + Ep(2) + kDistributedOptimizer + kOverlapAll},
       {"dp4 ep2, two instances",
        World(4) + Ep(2) + kDistributedOptimizer + Instances(2) + kOverlapAll},
       {"cp2", World(2) + Cp(2)},
       {"cp2 ep2", World(2) + Cp(2) + Ep(2) + kAllToAll},
       {"tp2 cp2 ep2, sp", World(4) + Tp(2) + kSequenceParallel + Cp(2) + Ep(2) + kAllToAll}});
}

TEST(MoeParityTest, DenseLayersBetween) {
  ExpectMoeParity(kAuxLoss + Settings{"model.moe_layer_freq=[0,1,0,1]"},
                  {{"ep2", World(2) + Ep(2)},
                   {"pp2 ep2", World(4) + Pp(2) + Ep(2) + kAllToAll},
                   {"pp4 ep2", World(8) + Pp(4) + Ep(2) + kAllToAll}});
}

TEST(MoeParityTest, Recomputation) {
  const Settings full = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                         "training.recompute_num_layers=1"};
  const Settings block = {"training.recompute_granularity=full", "training.recompute_method=block",
                          "training.recompute_num_layers=1"};
  ExpectMoeParity(kSigmoid + kAuxLoss,
                  {{"one process", full},
                   {"ep2", World(2) + Ep(2) + kAllToAll + full},
                   {"pp2 ep2, partial", World(4) + Pp(2) + Ep(2) + block + kPartial}});
}

TEST(MoeParityTest, LossPerToken) {
  ExpectMoeParity(kAuxLoss + Settings{"training.calculate_per_token_loss=true"},
                  {{"dp2", World(2)},
                   {"ep2", World(2) + Ep(2)},
                   {"cp2 ep2", World(2) + Cp(2) + Ep(2) + kAllToAll},
                   {"pp2 ep2", World(4) + Pp(2) + Ep(2) + kAllToAll}});
}

TEST(MoeParityTest, NodeLimitedGroupsAndBiases) {
  ExpectMoeParity(
      kSigmoid + Settings{"model.moe_router_num_groups=2", "model.moe_router_group_topk=1",
                          "model.add_bias_linear=true"},
      ExpertLayouts());
}

// A rank drops by the number of its own tokens: layouts that spread a sequence drop others.
TEST(MoeParityTest, Capacity) {
  for (const char* policy : {"probs", "position"}) {
    for (const char* pad : {"false", "true"}) {
      SCOPED_TRACE(absl::StrCat(policy, ", pad ", pad));
      ExpectMoeParity(
          kAuxLoss + Settings{"model.moe_expert_capacity_factor=0.75",
                              absl::StrCat("model.moe_token_drop_policy=", policy),
                              absl::StrCat("model.moe_pad_expert_input_to_capacity=", pad)},
          ExpertLayouts());
    }
  }
}

// The running mean is over the microbatches of the step's batch, which data parallel ranks see
// several of at a time: layouts of equal dp agree (reference 14.4).
TEST(MoeParityTest, GlobalAuxLoss) {
  ParityModel parity(kMoe + Settings{"training.fp64=true",
                                     "model.moe_router_load_balancing_type=global_aux_loss",
                                     "model.moe_aux_loss_coeff=0.05"});
  const Curve one = parity.Run({});
  ExpectSame(parity.Run(World(2) + Cp(2)), one, Fp64Bounds());
  ExpectSame(parity.Run(World(2) + Tp(2) + kSequenceParallel + Ep(2) + kAllToAll), one,
             Fp64Bounds());
  const Curve dp2 = parity.Run(World(2));
  ExpectSame(parity.Run(World(2) + Ep(2)), dp2, Fp64Bounds());
  ExpectSame(parity.Run(World(4) + Pp(2) + Ep(2) + kAllToAll), dp2, Fp64Bounds());
}

TEST(MoeParityTest, SeveralLossesAtOnce) {
  ExpectMoeParity({"model.moe_router_load_balancing_type=[\"aux_loss\",\"seq_aux_loss\"]",
                   "model.moe_aux_loss_coeff=[0.01,0.02]"},
                  {{"ep2", World(2) + Ep(2)},
                   {"tp2 ep2", World(2) + Tp(2) + kSequenceParallel + Ep(2) + kAllToAll}});
}

TEST(MoeParityTest, MuonAndSgd) {
  ExpectMoeParity(
      {"optimizer.optimizer=muon"},
      {{"ep2", World(2) + Ep(2)},
       {"ep2 etp2", World(4) + Tp(2) + kSequenceParallel + Ep(2, 2) + kAllToAll},
       {"dp4 ep2, layer-wise", World(4) + Ep(2) + Settings{"optimizer.optimizer=dist_muon"}}});
  ExpectMoeParity({"optimizer.optimizer=sgd", "optimizer.lr=0.02"}, {{"ep2", World(2) + Ep(2)}});
}

// Experts are drawn from the expert region, which depends on the places in ep and etp alone
// (reference 3): replicas of them start alike, and however a job is cut otherwise.
TEST(MoeParityTest, ReplicasOfExpertsAreDrawnAlike) {
  ParityModel parity(kMoe + kAuxLoss + Settings{"training.fp64=true"});
  const Settings fresh = {"checkpoint.pretrained_checkpoint=null"};
  const Settings random = {"training.data_parallel_random_init=true"};
  const Curve ep2 = parity.Run(fresh + World(2) + Ep(2));
  for (const Layout& layout :
       std::vector<Layout>{{"dp4 ep2", World(4) + Ep(2)},
                           {"dp4 ep2, alltoall, distributed optimizer",
                            World(4) + Ep(2) + kAllToAll + kDistributedOptimizer + kOverlapAll},
                           {"dp2 cp2 ep2", World(4) + Cp(2) + Ep(2)}}) {
    SCOPED_TRACE(layout.name);
    ExpectSame(parity.Run(fresh + layout.settings), ep2, Fp64Bounds());
  }
  // Every data parallel rank draws its own; the first one of each group of replicas counts.
  const Curve own = parity.Run(fresh + World(2) + Ep(2) + random);
  EXPECT_NE(own.steps.back().lm_loss, ep2.steps.back().lm_loss);
  ExpectSame(parity.Run(fresh + World(4) + Ep(2) + random), own, Fp64Bounds());
}

TEST(MoeParityTest, OneExpertATokenAndProbsOnInput) {
  ExpectMoeParity(
      {"model.moe_router_topk=1", "model.moe_router_pre_softmax=true",
       "model.moe_apply_probs_on_input=true"},
      {{"ep2", World(2) + Ep(2)}, {"ep4, grouped", World(4) + Ep(4) + kAllToAll + kGroupedGemm}});
}

}  // namespace
}  // namespace muster
