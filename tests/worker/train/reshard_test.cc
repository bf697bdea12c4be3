// A checkpoint saved by one layout, loaded by another and saved again, holds the same bits:
// weights, main parameters and moments; of experts too, and their routers' biases.

#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/train_test_util.h"
#include "tests/worker/train/whole_tensors.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// A layout: what of the spec differs from one process.
const std::map<std::string, std::vector<std::string>> kLayouts = {
    {"one", {}},
    {"dp2", {"resources.world_size=2"}},
    {"tp2", {"resources.world_size=2", "parallel.tensor_model_parallel_size=2"}},
    {"tp4",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=4",
      "parallel.sequence_parallel=true"}},
    {"pp2", {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2"}},
    {"pp2v2",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2",
      "parallel.virtual_pipeline_model_parallel_size=2"}},
    {"pp2uneven",
     {"resources.world_size=2", "parallel.pipeline_model_parallel_size=2",
      "parallel.decoder_last_pipeline_num_layers=1"}},
    {"dist2", {"resources.world_size=2", "parallel.use_distributed_optimizer=true"}},
    {"dist4",
     {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
      "parallel.ddp_bucket_size=3000", "parallel.overlap_grad_reduce=true",
      "parallel.overlap_param_gather=true"}},
    {"dist4in2",
     {"resources.world_size=4", "parallel.use_distributed_optimizer=true",
      "parallel.num_distributed_optimizer_instances=2"}},
    {"tp2dist2",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
      "parallel.use_distributed_optimizer=true"}},
    {"tp2pp2dist2",
     {"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
      "parallel.pipeline_model_parallel_size=2", "parallel.use_distributed_optimizer=true"}},
    {"cp2", {"resources.world_size=2", "parallel.context_parallel_size=2"}},
    {"cp2dist4",
     {"resources.world_size=4", "parallel.context_parallel_size=2",
      "parallel.use_distributed_optimizer=true", "parallel.ddp_bucket_size=3000",
      "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"}},
    {"zero0",
     {"resources.world_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=no_shard"}},
    {"zero1",
     {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim"}},
    // Parameters and gradients are sharded too.
    {"zero2",
     {"resources.world_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads"}},
    {"zero3",
     {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params"}},
    {"zero3in2",
     {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params",
      "parallel.num_distributed_optimizer_instances=2",
      "parallel.outer_dp_sharding_strategy=optim"}},
    {"tp2pp2zero3",
     {"resources.world_size=8", "parallel.tensor_model_parallel_size=2",
      "parallel.pipeline_model_parallel_size=2", "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params"}},
    // Muon's momentum, and Adam's moments of what is not a matrix; whole parameters by owner.
    {"muon", {"optimizer.optimizer=muon"}},
    {"dist_muon", {"resources.world_size=2", "optimizer.optimizer=dist_muon"}},
    {"tp2dist_muon",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
      "optimizer.optimizer=dist_muon"}},
};

// The same of a model with four experts.
const std::map<std::string, std::vector<std::string>> kExpertLayouts = {
    {"one", {}},
    {"cp2ep2",
     {"resources.world_size=2", "parallel.context_parallel_size=2",
      "parallel.expert_model_parallel_size=2"}},
    // Grouped or one by one, experts have the same names.
    {"ep2",
     {"resources.world_size=2", "parallel.expert_model_parallel_size=2",
      "model.moe_grouped_gemm=true", "model.moe_token_dispatcher_type=alltoall"}},
    {"ep4", {"resources.world_size=4", "parallel.expert_model_parallel_size=4"}},
    {"tp2ep2",
     {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
      "parallel.sequence_parallel=true", "parallel.expert_model_parallel_size=2",
      "model.moe_grouped_gemm=true", "model.moe_token_dispatcher_type=alltoall"}},
    {"tp2ep2whole",
     {"resources.world_size=2", "parallel.tensor_model_parallel_size=2",
      "parallel.sequence_parallel=true", "parallel.expert_model_parallel_size=2",
      "parallel.expert_tensor_parallel_size=1"}},
    {"pp2v2ep2",
     {"resources.world_size=4", "parallel.pipeline_model_parallel_size=2",
      "parallel.virtual_pipeline_model_parallel_size=2", "parallel.expert_model_parallel_size=2"}},
    {"ep2dist4",
     {"resources.world_size=4", "parallel.expert_model_parallel_size=2",
      "parallel.use_distributed_optimizer=true", "parallel.ddp_bucket_size=500",
      "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"}},
    {"ep2zero0",
     {"resources.world_size=2", "parallel.expert_model_parallel_size=2",
      "parallel.use_megatron_fsdp=true", "parallel.data_parallel_sharding_strategy=no_shard"}},
    {"ep2zero1",
     {"resources.world_size=4", "parallel.expert_model_parallel_size=2",
      "parallel.use_megatron_fsdp=true", "parallel.data_parallel_sharding_strategy=optim"}},
    {"ep4zero2",
     {"resources.world_size=4", "parallel.expert_model_parallel_size=4",
      "parallel.use_megatron_fsdp=true", "parallel.data_parallel_sharding_strategy=optim_grads"}},
    {"ep2zero3",
     {"resources.world_size=4", "parallel.expert_model_parallel_size=2",
      "parallel.use_megatron_fsdp=true",
      "parallel.data_parallel_sharding_strategy=optim_grads_params", "model.moe_grouped_gemm=true",
      "model.moe_token_dispatcher_type=alltoall"}},
    {"fsdp2", {"resources.world_size=4", "parallel.use_torch_fsdp2=true"}},
};

// With the padding of the vocabulary that one process has.
Settings SameVocabulary(const Settings& settings) {
  int tp = 1;
  for (const std::string& setting : settings) {
    for (int n : {2, 4}) {
      if (setting == absl::StrCat("parallel.tensor_model_parallel_size=", n)) tp = n;
    }
  }
  return settings + Settings{absl::StrCat("model.make_vocab_size_divisible_by=", 8 / tp)};
}

using Pair = std::pair<const char*, const char*>;

class ReshardTest : public testing::TestWithParam<Pair> {
 protected:
  // Trains 3 iterations of `model` (or goes on from `load`, where nothing is left to do) and
  // returns every tensor of the checkpoint at the end.
  std::map<std::string, at::Tensor> Save(const Settings& model, const std::string& folder,
                                         const std::string& load) {
    Settings settings = model + Settings{"training.bf16=true",
                                         "model.num_layers=4",
                                         "model.num_attention_heads=4",
                                         "model.swiglu=true",
                                         "training.train_iters=3",
                                         TrainTestRoot::kNoInterval,
                                         absl::StrCat("checkpoint.save=", root_ / folder)};
    if (!load.empty()) settings.push_back(absl::StrCat("checkpoint.load=", root_ / load));
    const auto ranks = RunJob(root_.Spec(settings));
    EXPECT_THAT(StepsOf(ranks), SizeIs(load.empty() ? 3 : 0));
    for (const EventMessage& event : ranks[0].host->All<EventMessage>())
      EXPECT_THAT(event.text, Not(HasSubstr("left out")));
    return WholeTensors(absl::StrCat(root_ / folder, "/iter_0000003"));
  }
  // What `from` saved is what `to` saves after it has loaded that; returns it.
  std::map<std::string, at::Tensor> ExpectSurvival(const Settings& from, const Settings& to) {
    const auto before = Save(SameVocabulary(from), "before", "");
    const auto after = Save(SameVocabulary(to), "after", "before");
    EXPECT_EQ(before.size(), after.size());
    for (const auto& [name, tensor] : before) {
      if (!after.contains(name)) {
        ADD_FAILURE() << name << " is gone";
        continue;
      }
      EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
    }
    return before;
  }

  TrainTestRoot root_;
};

TEST_P(ReshardTest, EveryTensorSurvivesBitForBit) {
  const auto& [from, to] = GetParam();
  const Settings model = {"model.ffn_hidden_size=64"};
  const auto saved = ExpectSurvival(model + kLayouts.at(from), model + kLayouts.at(to));
  // Word and position embeddings, the final norm's two, and 12 of each layer: each of them as
  // weight, main parameter and two moments; one moment where Muon manages it, the 4 matrices of
  // each layer and the position embedding.
  const bool muon = std::string(from).find("muon") != std::string::npos;
  EXPECT_EQ(saved.size(), 4u * (2 + 2 + 4 * 12) - (muon ? 4 * 4 + 1 : 0));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ReshardTest,
    testing::Values(Pair("one", "tp2pp2dist2"), Pair("tp2pp2dist2", "one"), Pair("tp2", "tp4"),
                    Pair("tp4", "pp2v2"), Pair("pp2", "tp2"), Pair("pp2v2", "pp2uneven"),
                    Pair("pp2uneven", "dist2"), Pair("dist2", "dist4"), Pair("dist4", "tp2dist2"),
                    Pair("dist4in2", "pp2"), Pair("tp2dist2", "dist4in2"),
                    Pair("tp2dist2", "pp2v2"), Pair("dp2", "tp2pp2dist2"),
                    Pair("one", "tp2pp2zero3"), Pair("tp2pp2zero3", "zero2"),
                    Pair("zero2", "zero3in2"), Pair("zero3in2", "zero3"),
                    Pair("zero3", "tp2pp2dist2"), Pair("pp2v2", "zero3"), Pair("zero3", "cp2"),
                    Pair("cp2", "tp4"), Pair("dist2", "zero1"), Pair("zero1", "zero0"),
                    Pair("zero0", "cp2dist4"), Pair("cp2dist4", "pp2"), Pair("dp2", "cp2"),
                    Pair("cp2", "dist2"), Pair("dist_muon", "muon"), Pair("muon", "tp2dist_muon"),
                    Pair("tp2dist_muon", "dist_muon")),
    [](const auto& info) { return absl::StrCat(info.param.first, "_to_", info.param.second); });

using ExpertReshardTest = ReshardTest;

TEST_P(ExpertReshardTest, EveryTensorSurvivesBitForBit) {
  const auto& [from, to] = GetParam();
  // The last two layers have experts. Embeddings are not tied: FSDP2 has no other models.
  const Settings model = {"model.ffn_hidden_size=16",
                          "model.num_experts=4",
                          "model.moe_layer_freq=[0,0,1,1]",
                          "model.moe_aux_loss_coeff=0.02",
                          "model.moe_router_score_function=sigmoid",
                          "model.moe_router_enable_expert_bias=true",
                          "model.moe_router_bias_update_rate=0.05",
                          "model.add_bias_linear=false",
                          "model.untie_embeddings_and_output_weights=true"};
  const auto saved = ExpectSurvival(model + kExpertLayouts.at(from), model + kExpertLayouts.at(to));
  // Word and position embeddings, output layer, the final norm's two; of each layer two of
  // attention, four of norms; a dense one's two matrices, or a router's and four experts' two.
  // Biases of routers have no optimizer state.
  EXPECT_EQ(saved.size(), 4u * (3 + 2 + 4 * 6 + 2 * 2 + 2 * (1 + 4 * 2)) + 2);
  for (const char* prefix : {"", "optimizer.main_param.", "optimizer.exp_avg_sq."}) {
    EXPECT_TRUE(saved.contains(
        absl::StrCat(prefix, "decoder.layers.3.mlp.experts.local_experts.3.linear_fc2.weight")))
        << prefix;
  }
  EXPECT_GT(saved.at("decoder.layers.3.mlp.router.expert_bias").abs().max().item<double>(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertReshardTest,
    testing::Values(Pair("one", "ep4"), Pair("ep4", "tp2ep2"), Pair("tp2ep2", "ep2dist4"),
                    Pair("ep2dist4", "tp2ep2whole"), Pair("tp2ep2whole", "ep2zero3"),
                    Pair("ep2zero3", "fsdp2"), Pair("fsdp2", "pp2v2ep2"),
                    Pair("pp2v2ep2", "ep4zero2"), Pair("ep4zero2", "cp2ep2"),
                    Pair("cp2ep2", "ep2zero1"), Pair("ep2zero1", "ep2"), Pair("ep2", "ep2zero0"),
                    Pair("ep2zero0", "one"), Pair("ep2zero3", "tp2ep2"), Pair("fsdp2", "one")),
    [](const auto& info) { return absl::StrCat(info.param.first, "_to_", info.param.second); });

}  // namespace
}  // namespace muster
