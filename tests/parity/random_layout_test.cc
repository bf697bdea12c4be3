// Random valid layouts of random models against one process, in fp64. The seed is printed with
// every failure; MUSTER_PARITY_SEED and MUSTER_PARITY_RUNS choose others.

#include <cstdlib>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/spec_json.h"
#include "common/spec/validate.h"
#include "tests/parity/parity_run.h"

namespace muster {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  int64_t value = 0;
  const char* const text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : generator_(seed) {}
  bool Flag() { return generator_() % 2 == 0; }
  int64_t OneOf(const std::vector<int64_t>& values) { return values[generator_() % values.size()]; }

  Settings Model() {
    Settings model = {"training.fp64=true", "training.train_iters=4", "evaluation.eval_interval=2"};
    const auto flag = [&](const char* field) {
      model.push_back(absl::StrCat(field, "=", Flag() ? "true" : "false"));
    };
    model.push_back(absl::StrCat("model.num_layers=", OneOf({2, 4, 6, 8})));
    model.push_back(absl::StrCat("model.num_query_groups=", OneOf({1, 2, 4})));
    model.push_back(
        absl::StrCat("model.position_embedding_type=", Flag() ? "rope" : "learned_absolute"));
    model.push_back(absl::StrCat("model.normalization=", Flag() ? "RMSNorm" : "LayerNorm"));
    for (const char* field :
         {"model.swiglu", "model.add_bias_linear", "model.add_qkv_bias", "model.qk_layernorm",
          "model.untie_embeddings_and_output_weights", "training.calculate_per_token_loss",
          "data.eod_mask_loss", "data.reset_position_ids"}) {
      flag(field);
    }
    if (Flag()) model.push_back("optimizer.optimizer=sgd");
    if (OneOf({0, 1, 2}) == 0) AddExperts(model);
    return model;
  }

  // Not what depends on how many tokens a rank has (capacity), or on how many microbatches run at a
  // time (global_aux_loss).
  void AddExperts(Settings& model) {
    const auto set = [&](const char* field, auto value) {
      model.push_back(absl::StrCat("model.", field, "=", value));
    };
    set("num_experts", OneOf({4, 8}));
    set("moe_ffn_hidden_size", OneOf({16, 32}));
    const int64_t topk = OneOf({1, 2, 2, 3});
    set("moe_router_topk", topk);
    const bool sigmoid = Flag();
    set("moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
    if (sigmoid && Flag()) set("moe_router_enable_expert_bias", "true");
    if (!sigmoid && (topk == 1 || Flag())) set("moe_router_pre_softmax", "true");
    if (Flag()) set("moe_router_load_balancing_type", "seq_aux_loss");
    if (Flag()) set("moe_aux_loss_coeff", "0.02");
    if (Flag()) set("moe_z_loss_coeff", "0.001");
    if (Flag()) set("moe_router_topk_scaling_factor", "1.5");
    if (topk == 2 && Flag()) {
      set("moe_router_num_groups", 2);
      set("moe_router_group_topk", OneOf({1, 2}));
    }
    if (Flag()) set("moe_shared_expert_intermediate_size", OneOf({16, 32}));
    if (Flag()) set("moe_layer_freq", 2);
  }

  Settings Parallel() {
    Settings layout;
    const auto set = [&](const char* field, auto value) {
      layout.push_back(absl::StrCat(field, "=", value));
    };
    const auto flag = [&](const char* field) { set(field, Flag() ? "true" : "false"); };
    const int64_t tp = OneOf({1, 1, 2, 4}), pp = OneOf({1, 1, 2, 2, 3, 4});
    const int64_t cp = OneOf({1, 1, 2, 4}), dp = OneOf({1, 2, 2, 4});
    set("resources.world_size", tp * pp * cp * dp);
    set("parallel.tensor_model_parallel_size", tp);
    set("parallel.context_parallel_size", cp);
    if (cp == 4 && Flag()) {
      set("parallel.cp_comm_type", "a2a+p2p");
      set("parallel.hierarchical_context_parallel_sizes", "[2,2]");
    } else {
      const char* const comm_types[] = {"p2p", "all_gather", "a2a"};
      set("parallel.cp_comm_type", comm_types[OneOf({0, 1, 2})]);
    }
    if (Flag()) {
      set("parallel.expert_model_parallel_size", OneOf({1, 2, 4}));
      set("parallel.expert_tensor_parallel_size", OneOf({1, 1, 2}));
    }
    if (Flag()) set("model.moe_token_dispatcher_type", "alltoall");
    flag("model.moe_grouped_gemm");
    const char* const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    switch (OneOf({0, 1, 2, 3, 4})) {
      case 0:
        set("parallel.use_megatron_fsdp", "true");
        set("parallel.data_parallel_sharding_strategy", strategies[OneOf({0, 1, 2, 3})]);
        break;
      case 1:
        set("parallel.use_torch_fsdp2", "true");
        flag("parallel.torch_fsdp2_reshard_after_forward");
        break;
      default:
        break;
    }
    set("parallel.pipeline_model_parallel_size", pp);
    set("parallel.num_distributed_optimizer_instances", OneOf({1, 1, 2}));
    set("parallel.ddp_bucket_size", OneOf({100, 3000, 100000}));
    if (pp > 1 && Flag()) {
      set("parallel.virtual_pipeline_model_parallel_size", OneOf({2, 2, 3, 4}));
      if (Flag()) {
        set("parallel.microbatch_group_size_per_virtual_pipeline_stage", OneOf({2, 3, 4, 8}));
      }
      flag("parallel.overlap_p2p_comm");
      if (Flag()) flag("parallel.overlap_p2p_comm_warmup_flush");
    } else if (pp > 1 && Flag()) {
      set("parallel.decoder_first_pipeline_num_layers", OneOf({1, 2}));
      if (Flag()) set("parallel.decoder_last_pipeline_num_layers", OneOf({1, 2}));
    } else if (pp > 1) {
      flag("parallel.account_for_embedding_in_pipeline_split");
      flag("parallel.account_for_loss_in_pipeline_split");
    }
    for (const char* field : {"parallel.sequence_parallel", "parallel.use_distributed_optimizer",
                              "parallel.overlap_grad_reduce", "parallel.overlap_param_gather",
                              "parallel.align_grad_reduce", "parallel.align_param_gather",
                              "parallel.ddp_average_in_collective"}) {
      flag(field);
    }
    switch (OneOf({0, 1, 2, 3})) {
      case 0:
        set("training.recompute_granularity", "selective");
        break;
      case 1:
        set("training.recompute_granularity", "full");
        set("training.recompute_method", Flag() ? "uniform" : "block");
        set("training.recompute_num_layers", 1);
        break;
      default:
        break;
    }
    if (pp > 1 && Flag()) {
      set("training.num_microbatches_with_partial_activation_checkpoints", OneOf({0, 1, 2}));
    }
    return layout;
  }

 private:
  std::mt19937_64 generator_;
};

// Means of context parallel ranks over unequal numbers of tokens are another objective (reference
// 5.1).
bool SameObjective(const JobSpec& spec) {
  return spec.parallel.context_parallel_size == 1 || !spec.data.eod_mask_loss ||
         spec.training.calculate_per_token_loss;
}

TEST(RandomLayoutTest, GivesTheNumbersOfOneProcess) {
  const int64_t seed = FromEnvironment("MUSTER_PARITY_SEED", 20260801);
  const int64_t runs = FromEnvironment("MUSTER_PARITY_RUNS", 24);
  Draw draw(static_cast<uint64_t>(seed));
  constexpr int kMaxRanks = 8;
  int64_t done = 0, drawn = 0;
  while (done < runs) {
    const Settings model = draw.Model();
    ParityModel parity(model);
    std::optional<Curve> one;
    for (int tries = 0; tries < 200 && done < runs; ++tries) {
      const Settings layout = draw.Parallel();
      ++drawn;
      auto text = ApplySetOptions(parity.Spec({}), layout);
      ASSERT_TRUE(text.ok()) << text.status();
      const ParsedSpec parsed = ParseJobSpec(*text);
      if (!parsed.problems.empty() || parsed.spec.resources.world_size > kMaxRanks) continue;
      if (!SameObjective(parsed.spec)) continue;
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", draw ", drawn, ": ", absl::StrJoin(model, " "),
                                " | ", absl::StrJoin(layout, " ")));
      if (!one.has_value()) one = parity.Run({});
      ExpectSame(parity.Run(layout), *one, Fp64Bounds());
      if (testing::Test::HasFailure()) return;
      // A few layouts a model: another model shows more than another layout.
      if (++done % 4 == 0) break;
    }
  }
}

}  // namespace
}  // namespace muster
