// Peak memory of a rank, counted by the allocator while real steps run, against the plan's
// prediction.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/plan.h"
#include "common/spec/spec_json.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

// Large enough that activations, parameters and logits all count.
Settings Model(const Settings& more) {
  Settings all = {"model.num_layers=4",           "model.hidden_size=128",
                  "model.num_attention_heads=4",  "model.seq_length=128",
                  "model.vocab_size=2048",        "training.micro_batch_size=2",
                  "training.global_batch_size=4", "training.train_iters=3"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The largest peak of each stage's ranks is within a tenth of the stage's plan.
void ExpectPlanned(const char* name, const Settings& settings) {
  SCOPED_TRACE(absl::StrCat(name, ": ", absl::StrJoin(settings, " ")));
  TrainTestRoot root;
  const std::string text = root.Spec(Model(settings));
  const JobSpec spec = ParseJobSpec(text).spec;
  const auto plan = MakePlan(spec, Resolve(spec, 257));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto topology = RankTopology::Create(TopologyOf(spec));
  ASSERT_TRUE(topology.ok()) << topology.status();
  const std::vector<RankRun> ranks = RunJob(text);
  std::vector<int64_t> peaks(plan->stages.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(ranks[rank].status.ok()) << ranks[rank].status;
    int64_t& peak = peaks[static_cast<size_t>(topology->Coordinates(static_cast<int>(rank)).pp)];
    peak = std::max(peak, ranks[rank].peak_memory_bytes);
  }
  for (size_t stage = 0; stage < peaks.size(); ++stage) {
    const auto planned = static_cast<double>(plan->stages[stage].total_bytes());
    const auto peak = static_cast<double>(peaks[stage]);
    EXPECT_NEAR(planned / peak, 1.0, 0.1)
        << "stage " << stage << ": peak " << peak / 1e6 << " MB, plan " << planned / 1e6
        << " MB, of them activations "
        << static_cast<double>(plan->stages[stage].activation_bytes) / 1e6;
  }
}

constexpr char kWorld2[] = "resources.world_size=2";
constexpr char kBf16[] = "training.bf16=true";
const Settings kLlama = {"model.position_embedding_type=rope", "model.normalization=RMSNorm",
                         "model.swiglu=true", "model.add_bias_linear=false",
                         "model.num_query_groups=2"};
const Settings kDropout = {"model.attention_dropout=0.1", "model.hidden_dropout=0.1"};

TEST(MemoryTest, OneRankOfEachPrecision) {
  ExpectPlanned("fp32", {});
  ExpectPlanned("bf16", {kBf16});
  ExpectPlanned("fp64", {"training.fp64=true"});
  ExpectPlanned("fp16", {"training.fp16=true", "training.loss_scale=1024"});
}

TEST(MemoryTest, ModelOptions) {
  ExpectPlanned("llama fp32", kLlama);
  ExpectPlanned("llama bf16", kLlama + Settings{kBf16});
  ExpectPlanned("dropout fp32", kDropout);
  ExpectPlanned("dropout bf16", kDropout + Settings{kBf16});
  ExpectPlanned("untied, large vocabulary",
                {"model.untie_embeddings_and_output_weights=true", "model.vocab_size=8192"});
  ExpectPlanned("normalised heads", {"model.qk_layernorm=true"});
  ExpectPlanned("wide", {"model.hidden_size=256", "model.num_layers=2"});
}

TEST(MemoryTest, Recomputation) {
  const Settings many = {"model.num_layers=8", "training.micro_batch_size=4"};
  const Settings full = {"training.recompute_granularity=full"};
  ExpectPlanned("uniform 1", many + full +
                                 Settings{"training.recompute_method=uniform",
                                          "training.recompute_num_layers=1"});
  ExpectPlanned("uniform 4", many + full +
                                 Settings{"training.recompute_method=uniform",
                                          "training.recompute_num_layers=4"});
  ExpectPlanned(
      "block 6",
      many + full + Settings{"training.recompute_method=block", "training.recompute_num_layers=6"});
  ExpectPlanned("selective",
                many + kDropout + Settings{"training.recompute_granularity=selective"});
}

TEST(MemoryTest, Optimizers) {
  ExpectPlanned("sgd", {"optimizer.optimizer=sgd"});
  ExpectPlanned("muon", {"optimizer.optimizer=muon"});
}

TEST(MemoryTest, DataParallel) {
  ExpectPlanned("dp2", {kWorld2});
  ExpectPlanned("dp2 bf16", {kWorld2, kBf16});
  ExpectPlanned("dp2 distributed optimizer", {kWorld2, "parallel.use_distributed_optimizer=true"});
  ExpectPlanned("dp2 distributed optimizer bf16",
                {kWorld2, kBf16, "parallel.use_distributed_optimizer=true"});
}

TEST(MemoryTest, TensorParallel) {
  const Settings tp2 = {kWorld2, "parallel.tensor_model_parallel_size=2"};
  ExpectPlanned("tp2", tp2);
  ExpectPlanned("tp2 bf16", tp2 + Settings{kBf16});
  ExpectPlanned("tp2 sp", tp2 + Settings{"parallel.sequence_parallel=true"});
  ExpectPlanned("tp2 sp llama", tp2 + kLlama + Settings{"parallel.sequence_parallel=true"});
}

TEST(MemoryTest, PipelineParallel) {
  const Settings pp2 = {kWorld2, "parallel.pipeline_model_parallel_size=2",
                        "training.global_batch_size=8"};
  ExpectPlanned("pp2", pp2);
  ExpectPlanned("pp2 bf16", pp2 + Settings{kBf16});
  ExpectPlanned("pp2 v2", pp2 + Settings{"parallel.virtual_pipeline_model_parallel_size=2"});
}

TEST(MemoryTest, ContextParallel) {
  const Settings cp2 = {kWorld2, "parallel.context_parallel_size=2", "training.micro_batch_size=4"};
  for (const char* type : {"p2p", "all_gather", "a2a"}) {
    ExpectPlanned(type, cp2 + Settings{absl::StrCat("parallel.cp_comm_type=", type)});
    ExpectPlanned(type,
                  cp2 + kLlama + Settings{kBf16, absl::StrCat("parallel.cp_comm_type=", type)});
  }
  // Wide heads and a small vocabulary: attention counts.
  const Settings wide = {"model.kv_channels=128", "model.vocab_size=300"};
  for (const char* type : {"p2p", "all_gather", "a2a"})
    ExpectPlanned("wide heads",
                  cp2 + wide + Settings{absl::StrCat("parallel.cp_comm_type=", type)});
  ExpectPlanned("dropout", cp2 + kDropout);
  const Settings cp4 = {"resources.world_size=4", "parallel.context_parallel_size=4",
                        "training.micro_batch_size=8", "training.global_batch_size=8"};
  ExpectPlanned("ring of four", cp4);
  ExpectPlanned("levels", cp4 + Settings{"parallel.cp_comm_type=a2a+p2p",
                                         "parallel.hierarchical_context_parallel_sizes=[2,2]"});
  ExpectPlanned("cp2 pp2", cp2 + Settings{"resources.world_size=4", "training.global_batch_size=8",
                                          "parallel.pipeline_model_parallel_size=2"});
}

// Routing is not quite even, unless every expert is filled up to its capacity.
TEST(MemoryTest, Experts) {
  const Settings moe = {"model.num_experts=4", "model.add_bias_linear=false"};
  const Settings ep2 = moe + Settings{kWorld2, "parallel.expert_model_parallel_size=2"};
  const Settings alltoall = {"model.moe_token_dispatcher_type=alltoall"};
  const Settings padded = {"model.moe_expert_capacity_factor=1.25",
                           "model.moe_pad_expert_input_to_capacity=true"};
  ExpectPlanned("one rank", moe);
  ExpectPlanned("every other layer", moe + Settings{"model.moe_layer_freq=2", kBf16});
  ExpectPlanned("ep2, gathered", ep2 + padded);
  ExpectPlanned("ep2, sent", ep2 + padded + alltoall);
  ExpectPlanned("ep2, grouped", ep2 + alltoall + Settings{"model.moe_grouped_gemm=true"});
  ExpectPlanned("ep2, weights in fp32",
                ep2 + padded + alltoall + Settings{kBf16, "model.moe_router_dtype=fp32"});
  ExpectPlanned("ep2, shared expert", ep2 + padded +
                                          Settings{"model.moe_shared_expert_intermediate_size=256",
                                                   "model.moe_shared_expert_gate=true"});
  ExpectPlanned("ep2, many small experts",
                ep2 + padded + alltoall +
                    Settings{"model.num_experts=8", "model.moe_router_topk=4",
                             "model.moe_ffn_hidden_size=128", "training.micro_batch_size=8",
                             "training.global_batch_size=16", "model.vocab_size=300"});
  ExpectPlanned("tp2, experts in halves",
                moe + padded + alltoall +
                    Settings{kWorld2, "parallel.tensor_model_parallel_size=2",
                             "parallel.sequence_parallel=true"});
}

TEST(MemoryTest, FullySharded) {
  const Settings untied = {"model.untie_embeddings_and_output_weights=true"};
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    const Settings fsdp = {kWorld2, "parallel.use_megatron_fsdp=true",
                           absl::StrCat("parallel.data_parallel_sharding_strategy=", strategy)};
    ExpectPlanned(strategy, fsdp);
    ExpectPlanned(strategy, fsdp + kLlama + Settings{kBf16});
    ExpectPlanned(strategy, fsdp + Settings{"resources.world_size=4",
                                            "parallel.tensor_model_parallel_size=2"});
  }
  const Settings fsdp2 = untied + Settings{kWorld2, "parallel.use_torch_fsdp2=true"};
  ExpectPlanned("fsdp2", fsdp2);
  ExpectPlanned("fsdp2 bf16", fsdp2 + Settings{kBf16});
  ExpectPlanned("fsdp2, not resharded",
                fsdp2 + Settings{"parallel.torch_fsdp2_reshard_after_forward=false"});
  const Settings params = {"parallel.use_megatron_fsdp=true",
                           "parallel.data_parallel_sharding_strategy=optim_grads_params"};
  ExpectPlanned("dropout", params + kDropout + Settings{kWorld2});
  ExpectPlanned("recomputed", params + Settings{kWorld2, "training.recompute_granularity=full",
                                                "training.recompute_method=uniform",
                                                "training.recompute_num_layers=1"});
  ExpectPlanned("experts", params + Settings{"resources.world_size=4", "model.num_experts=4",
                                             "parallel.expert_model_parallel_size=2",
                                             "training.global_batch_size=8"});
  ExpectPlanned("two instances",
                params + Settings{"resources.world_size=4", "training.global_batch_size=8",
                                  "parallel.num_distributed_optimizer_instances=2",
                                  "parallel.outer_dp_sharding_strategy=optim"});
  ExpectPlanned("pp2", {"resources.world_size=4", "parallel.use_megatron_fsdp=true",
                        "parallel.data_parallel_sharding_strategy=optim_grads",
                        "parallel.pipeline_model_parallel_size=2", "training.global_batch_size=8"});
}

TEST(MemoryTest, LayoutsTogether) {
  const Settings tp2_pp2 = {"resources.world_size=4", "parallel.tensor_model_parallel_size=2",
                            "parallel.pipeline_model_parallel_size=2",
                            "training.global_batch_size=8"};
  const Settings sharded = {"parallel.use_distributed_optimizer=true",
                            "parallel.overlap_grad_reduce=true",
                            "parallel.overlap_param_gather=true"};
  ExpectPlanned("tp2 pp2 sp bf16", tp2_pp2 + Settings{"parallel.sequence_parallel=true", kBf16});
  ExpectPlanned("dp2 pp2, sharded, dropout",
                kDropout + sharded +
                    Settings{"resources.world_size=4", "parallel.pipeline_model_parallel_size=2",
                             "training.global_batch_size=16"});
  ExpectPlanned("dp2 tp2, sharded", sharded + Settings{"resources.world_size=4",
                                                       "parallel.tensor_model_parallel_size=2"});
  ExpectPlanned("pp2 recomputed",
                Settings{kWorld2, "parallel.pipeline_model_parallel_size=2",
                         "training.global_batch_size=8", "training.recompute_granularity=full",
                         "training.recompute_method=block", "training.recompute_num_layers=1"});
  ExpectPlanned(
      "pp2, one partially recomputed",
      Settings{kWorld2, "parallel.pipeline_model_parallel_size=2", "training.global_batch_size=8",
               "training.num_microbatches_with_partial_activation_checkpoints=1"});
  ExpectPlanned(
      "pp2 v2, two partially recomputed",
      Settings{kWorld2, "parallel.pipeline_model_parallel_size=2",
               "parallel.virtual_pipeline_model_parallel_size=2", "training.global_batch_size=8",
               "training.num_microbatches_with_partial_activation_checkpoints=2"});
  ExpectPlanned("dp2 layer-wise Muon", {kWorld2, "optimizer.optimizer=dist_muon"});
  ExpectPlanned("tp2 Muon",
                {kWorld2, "parallel.tensor_model_parallel_size=2", "optimizer.optimizer=muon"});
}

}  // namespace
}  // namespace muster
