// Mixtures of experts over many ranks, as threads: every loss and every gradient of a GPT equals
// that of one process that sees the same microbatches in turn.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/spec/spec_json.h"
#include "common/topology/rank_topology.h"
#include "test_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/parallel/parameter_slices.h"

namespace muster {
namespace {

using Settings = std::vector<std::string>;

constexpr char kSpec[] = R"({
  "name": "moe",
  "model": {"num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 24, "num_attention_heads": 4,
            "seq_length": 8, "make_vocab_size_divisible_by": 4,
            "attention_dropout": 0, "hidden_dropout": 0, "swiglu": true, "add_bias_linear": false,
            "normalization": "RMSNorm", "position_embedding_type": "rope",
            "num_experts": 4, "moe_aux_loss_coeff": 0.02, "moe_z_loss_coeff": 0.01},
  "data": {"data_path": ["/data"]},
  "training": {"fp64": true, "micro_batch_size": 2, "train_iters": 1},
  "optimizer": {"lr": 0.01},
  "parallel": {"distributed_backend": "gloo"},
  "resources": {"device": "cpu"}
})";
constexpr int64_t kBatch = 2, kSeq = 8, kVocab = 257;

JobSpec SpecWith(const Settings& settings) {
  const absl::StatusOr<std::string> text = ApplySetOptions(kSpec, settings);
  EXPECT_TRUE(text.ok()) << text.status();
  ParsedSpec parsed = ParseJobSpec(*text);
  for (const SpecProblem& problem : parsed.problems) ADD_FAILURE() << problem.ToString();
  return parsed.spec;
}

// A rank's model with what lives as long as it.
struct Built {
  ParallelContext parallel;
  RngTracker rng;
  ExpertState experts;
  std::unique_ptr<GptModel> model;
};

absl::StatusOr<std::unique_ptr<Built>> Build(const JobSpec& spec, ParallelContext parallel) {
  const RankCoordinates& where = parallel.coordinates();
  ASSIGN_OR_RETURN(RngTracker rng, RngTracker::Create(1234,
                                                      {.tp_rank = where.tp,
                                                       .pp_rank = where.pp,
                                                       .dp_rank = where.dp,
                                                       .ep_rank = where.ep,
                                                       .etp_rank = where.expert_tp},
                                                      false, false));
  auto built =
      std::unique_ptr<Built>(new Built{.parallel = std::move(parallel), .rng = std::move(rng)});
  const ResolvedSpec sizes = Resolve(spec, kVocab);
  ASSIGN_OR_RETURN(built->model, GptModel::Create({.spec = spec,
                                                   .sizes = sizes,
                                                   .parallel = built->parallel,
                                                   .rng = built->rng,
                                                   .experts = built->experts,
                                                   .device = at::kCPU,
                                                   .params_dtype = at::kDouble,
                                                   .num_layers = spec.model.num_layers}));
  AttachMainGrads(built->model->parameters(), at::kDouble);
  return built;
}

Batch BatchOf(int dp_rank) {
  TransformerConfig sizes;
  sizes.padded_vocab_size = kVocab;
  return RandomBatch(sizes, kBatch, kSeq, 50 + static_cast<uint64_t>(dp_rank));
}

at::Tensor Pass(Built& built, int dp_rank) {
  const at::Tensor losses = built.model->Forward(BatchOf(dp_rank), {});
  const at::Tensor weights =
      RandomLeaf(losses.sizes(), 70 + static_cast<uint64_t>(dp_rank)).detach();
  (losses * weights).sum().backward();
  return losses.detach();
}

// Small logits would leave the softmax flat; large ones make the experts uneven.
void FillAtRandom(const std::vector<ParameterPtr>& parameters) {
  at::NoGradGuard no_grad;
  uint64_t seed = 100;
  for (const ParameterPtr& parameter : parameters) {
    const at::Tensor noise = RandomLeaf(parameter->data.sizes(), ++seed).detach();
    const bool norm_weight = parameter->name.ends_with("layernorm.weight");
    parameter->data.copy_(noise.mul(0.4).add(norm_weight ? 1.0 : 0.0));
  }
}

// What data-parallel and tensor-parallel ranks add up when gradients are made final.
at::Tensor FinalGrad(const Parameter& p, const ParallelContext& parallel) {
  at::Tensor grad = p.main_grad.contiguous().clone();
  WaitOrThrow(parallel.Group(p.allreduce ? "dp_cp" : "expert_dp").AllReduce(grad, ReduceOp::kSum));
  if (p.sequence_parallel) WaitOrThrow(parallel.Group("tp").AllReduce(grad, ReduceOp::kSum));
  return grad;
}

struct Layout {
  const char* name;
  int world = 1;
  Settings settings;  // parallel.*
};
constexpr char kTensor2[] = "parallel.tensor_model_parallel_size=2";
constexpr char kSequence[] = "parallel.sequence_parallel=true";
// The vocabulary is padded to the same size.
constexpr char kVocab2[] = "model.make_vocab_size_divisible_by=2";
const Layout kLayouts[] = {
    {"one", 1, {}},
    {"dp2", 2, {}},
    {"ep2", 2, {"parallel.expert_model_parallel_size=2"}},
    {"ep4", 4, {"parallel.expert_model_parallel_size=4"}},
    {"dp2ep2", 4, {"parallel.expert_model_parallel_size=2"}},
    {"etp2", 2, {"parallel.expert_tensor_parallel_size=2"}},
    {"ep2etp2",
     4,
     {"parallel.expert_model_parallel_size=2", "parallel.expert_tensor_parallel_size=2"}},
    {"tp2sp", 2, {kTensor2, kVocab2, kSequence}},
    {"tp2ep2sp", 4, {kTensor2, kVocab2, kSequence, "parallel.expert_model_parallel_size=2"}},
    {"tp2ep2etp1sp",
     2,
     {kTensor2, kVocab2, kSequence, "parallel.expert_model_parallel_size=2",
      "parallel.expert_tensor_parallel_size=1"}},
};

struct Model {
  const char* name;
  Settings settings;
  // Decides by the tokens of one rank, which sequence parallelism makes others.
  bool by_local_tokens = false;
  bool biases = false;  // not with expert tensor parallelism
};
const Model kModels[] = {
    {.name = "softmax", .settings = {}},
    {.name = "sigmoid_bias_groups",
     .settings = {"model.moe_router_score_function=sigmoid",
                  "model.moe_router_enable_expert_bias=true", "model.moe_router_num_groups=2",
                  "model.moe_router_group_topk=1", "model.moe_router_topk_scaling_factor=1.5",
                  "model.moe_router_load_balancing_type=seq_aux_loss"}},
    {.name = "drop_probs",
     .settings = {"model.moe_expert_capacity_factor=0.75", "model.moe_grouped_gemm=true"},
     .by_local_tokens = true},
    {.name = "drop_position_padded",
     .settings = {"model.moe_expert_capacity_factor=1.0", "model.moe_token_drop_policy=position",
                  "model.moe_pad_expert_input_to_capacity=true"},
     .by_local_tokens = true},
    {.name = "shared_gated_overlapped",
     .settings = {"model.moe_shared_expert_intermediate_size=8",
                  "model.moe_shared_expert_gate=true", "model.moe_shared_expert_overlap=true",
                  "model.moe_grouped_gemm=true", "model.moe_token_dispatcher_type=alltoall"}},
    {.name = "gelu_biases_every_second",
     .settings = {"model.swiglu=false", "model.add_bias_linear=true",
                  "model.normalization=LayerNorm", "model.moe_layer_freq=2"},
     .biases = true},
    {.name = "topk1_probs_on_input",
     .settings = {"model.moe_router_topk=1", "model.moe_router_pre_softmax=true",
                  "model.moe_apply_probs_on_input=true"}},
    {.name = "recomputed",
     .settings = {"training.recompute_granularity=full", "training.recompute_method=uniform",
                  "training.recompute_num_layers=1", "model.moe_router_score_function=sigmoid",
                  "model.moe_router_enable_expert_bias=true", "model.moe_grouped_gemm=true"}},
};

class MoeLayoutTest : public testing::TestWithParam<Layout> {
 protected:
  void ExpectOneProcess(const Layout& layout, const Settings& settings) {
    const JobSpec alone = SpecWith(settings);
    auto whole = Build(alone, ParallelContext::SingleProcess());
    ASSERT_TRUE(whole.ok()) << whole.status();
    FillAtRandom((*whole)->model->parameters());
    Settings all = settings;
    all.insert(all.end(), layout.settings.begin(), layout.settings.end());
    all.push_back("resources.world_size=" + std::to_string(layout.world));
    const JobSpec spec = SpecWith(all);
    const auto topology = RankTopology::Create(TopologyOf(spec));
    ASSERT_TRUE(topology.ok()) << topology.status();

    const int replicas = layout.world / static_cast<int>(spec.parallel.tensor_model_parallel_size);
    std::vector<at::Tensor> losses;
    for (int dp = 0; dp < replicas; ++dp) losses.push_back(Pass(**whole, dp));
    std::map<std::string, const Parameter*> by_name;
    for (const ParameterPtr& p : (*whole)->model->parameters()) by_name[p->name] = p.get();

    RunRanks(layout.world, [&](CommunicatorPtr world) -> absl::Status {
      const int rank = world->rank();
      ASSIGN_OR_RETURN(ParallelContext parallel,
                       ParallelContext::Create(*topology, rank, std::move(world)));
      ASSIGN_OR_RETURN(const auto built, Build(spec, std::move(parallel)));
      for (const ParameterPtr& p : built->model->parameters()) {
        at::NoGradGuard no_grad;
        p->data.copy_(ShardOf(by_name.at(p->name)->data.detach(), *p));
      }
      const int dp = built->parallel.coordinates().dp;
      EXPECT_LE(MaxDifference(Pass(*built, dp), losses[static_cast<size_t>(dp)]), 1e-10);
      for (const ParameterPtr& p : built->model->parameters()) {
        SCOPED_TRACE(p->name);
        EXPECT_LE(MaxDifference(FinalGrad(*p, built->parallel),
                                ShardOf(by_name.at(p->name)->main_grad, *p)),
                  1e-10);
      }
      ExpectSameCounts(*built, (*whole)->experts);
      return absl::OkStatus();
    });
  }

  // Tokens counted for the expert biases.
  static void ExpectSameCounts(const Built& built, const ExpertState& whole) {
    const auto& mine = built.experts.biases();
    ASSERT_EQ(mine.size(), whole.biases().size());
    for (size_t i = 0; i < mine.size(); ++i) {
      at::Tensor counts = mine[i].counts.clone();
      WaitOrThrow(built.parallel.Group("tp_dp_cp").AllReduce(counts, ReduceOp::kSum));
      EXPECT_EQ(mine[i].name, whole.biases()[i].name);
      EXPECT_TRUE(at::equal(counts, whole.biases()[i].counts)) << counts;
      EXPECT_GT(counts.sum().item<double>(), 0);
    }
  }
};

TEST_P(MoeLayoutTest, LossesAndGradientsAreThoseOfOneProcess) {
  const Layout& layout = GetParam();
  const bool cuts_sequences = std::string(layout.name).ends_with("sp");
  const bool cuts_experts = std::string(layout.name).find("etp2") != std::string::npos ||
                            layout.name == std::string("tp2sp") ||
                            layout.name == std::string("tp2ep2sp");
  for (const Model& model : kModels) {
    if ((model.by_local_tokens && cuts_sequences) || (model.biases && cuts_experts)) continue;
    for (const char* dispatcher : {"allgather", "alltoall"}) {
      SCOPED_TRACE(std::string(model.name) + " " + dispatcher);
      Settings settings = {std::string("model.moe_token_dispatcher_type=") + dispatcher};
      settings.insert(settings.end(), model.settings.begin(), model.settings.end());
      ExpectOneProcess(layout, settings);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeLayoutTest, testing::ValuesIn(kLayouts),
                         [](const auto& test) { return std::string(test.param.name); });

// Grouped experts and both dispatchers change nothing but the order of the arithmetic.
TEST(MoeModelTest, ExpertsAreNamedByTheirNumberInTheLayerAndFlaggedForTheirGroup) {
  const JobSpec spec =
      SpecWith({"parallel.expert_model_parallel_size=2", "resources.world_size=2",
                "model.moe_shared_expert_intermediate_size=8", "model.moe_shared_expert_gate=true",
                "model.moe_layer_freq=[0,1]"});
  const auto topology = RankTopology::Create(TopologyOf(spec));
  ASSERT_TRUE(topology.ok());
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(ParallelContext parallel, ParallelContext::Create(*topology, rank, world));
    ASSIGN_OR_RETURN(const auto built, Build(spec, std::move(parallel)));
    std::vector<std::string> names;
    for (const ParameterPtr& p : built->model->parameters()) {
      const bool expert = p->name.find("local_experts") != std::string::npos;
      EXPECT_EQ(p->allreduce, !expert) << p->name;
      if (p->name.find(".mlp.") != std::string::npos) names.push_back(p->name);
    }
    const std::string dense = "decoder.layers.0.mlp.", moe = "decoder.layers.1.mlp.";
    const std::string first = moe + "experts.local_experts." + std::to_string(2 * rank);
    const std::string second = moe + "experts.local_experts." + std::to_string(2 * rank + 1);
    const std::string shared = moe + "shared_experts.";
    EXPECT_EQ(names, (std::vector<std::string>{
                         dense + "linear_fc1.weight", dense + "linear_fc2.weight",
                         moe + "router.weight", first + ".linear_fc1.weight",
                         first + ".linear_fc2.weight", second + ".linear_fc1.weight",
                         second + ".linear_fc2.weight", shared + "gate_weight",
                         shared + "linear_fc1.weight", shared + "linear_fc2.weight"}));
    return absl::OkStatus();
  });
}

// G3.1: the experts of a rank are drawn from seed + 1024 + 100 ep_rank + etp_rank; what is
// replicated is the same everywhere.
TEST(MoeModelTest, ExpertsAreDrawnFromTheExpertRegion) {
  const JobSpec spec =
      SpecWith({"parallel.expert_model_parallel_size=2", "resources.world_size=4"});
  const auto topology = RankTopology::Create(TopologyOf(spec));
  ASSERT_TRUE(topology.ok());
  std::vector<std::map<std::string, at::Tensor>> drawn(4);
  RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
    const int rank = world->rank();
    ASSIGN_OR_RETURN(ParallelContext parallel, ParallelContext::Create(*topology, rank, world));
    ASSIGN_OR_RETURN(const auto built, Build(spec, std::move(parallel)));
    for (const ParameterPtr& p : built->model->parameters())
      drawn[static_cast<size_t>(rank)][p->name] = p->data.detach().clone();
    return absl::OkStatus();
  });
  const std::string experts = "decoder.layers.0.mlp.experts.local_experts.";
  const std::string fc1 = ".linear_fc1.weight", router = "decoder.layers.0.mlp.router.weight";
  // Ranks 0 and 2, 1 and 3 are replicas of the same experts.
  EXPECT_TRUE(at::equal(drawn[0][experts + "0" + fc1], drawn[2][experts + "0" + fc1]));
  EXPECT_TRUE(at::equal(drawn[1][experts + "2" + fc1], drawn[3][experts + "2" + fc1]));
  EXPECT_FALSE(at::equal(drawn[0][experts + "0" + fc1], drawn[1][experts + "2" + fc1]));
  EXPECT_TRUE(at::equal(drawn[0][router], drawn[1][router]));
  RngTracker region = *RngTracker::Create(1234 + 100, {}, false, false);
  const at::Tensor expected =
      at::empty({48, 16}, at::kFloat).normal_(0.0, 0.02, *region.Get(kExpertParallelRng));
  EXPECT_TRUE(at::equal(drawn[1][experts + "2" + fc1], expected.to(at::kDouble)));
}

}  // namespace
}  // namespace muster
