// The reference's rules on context and expert parallelism (14.3 to 14.5) and on fully sharded data
// parallelism (15), sentence by sentence: what breaks each and the field that the error names.
//
// Rules without a counterpart here: CUDA_DEVICE_MAX_CONNECTIONS (14, 15: a setting of Megatron's
// streams), checkpoint formats (15: there is one, which loads into any layout), gradient
// accumulation fusion and meta-device initialisation (15: neither exists), sliding windows and
// attention biases (14.3: neither exists), the flex dispatcher (14.5: a name that is refused).
#include "common/spec/data_sharding.h"
#include "rules_fixture.h"

namespace muster {
namespace {

const char kTp[] = "parallel.tensor_model_parallel_size";
const char kCp[] = "parallel.context_parallel_size";
const char kEp[] = "parallel.expert_model_parallel_size";
const char kEtp[] = "parallel.expert_tensor_parallel_size";
const char kPp[] = "parallel.pipeline_model_parallel_size";
const char kComm[] = "parallel.cp_comm_type";
const char kLevels[] = "parallel.hierarchical_context_parallel_sizes";
const char kSeq[] = "model.seq_length";
const char kSequenceParallel[] = "parallel.sequence_parallel=true";
const char kNoBias[] = "model.add_bias_linear=false";
const char kInstances[] = "parallel.num_distributed_optimizer_instances";

TEST(ReferenceLayoutsTest, Part14ContextParallelism) {
  // Four layers, four heads, 32 tokens, eight ranks.
  const std::vector<std::string> cp4 = {"resources.world_size=8", Set(kCp, 4)};
  ExpectRules(
      cp4,
      {
          {"14.3 s % 2cp",
           {"model.seq_length=28"},
           kSeq,
           "multiple of 2 x parallel.context_parallel_size = 8"},
          {"14.3 s = 2cp", {"model.seq_length=8"}, nullptr, ""},
          {"14 s % tp of each rank's part",
           {Set(kTp, 2), "model.seq_length=24", kSequenceParallel, "model.num_attention_heads=8"},
           nullptr,
           ""},
          {"14 the same, tokens left over",
           {"resources.world_size=12", "training.global_batch_size=2", Set(kTp, 3),
            kSequenceParallel, "model.num_attention_heads=6", "model.hidden_size=96",
            "model.ffn_hidden_size=96", "model.seq_length=32"},
           kSeq,
           "multiple of tensor x context parallel size (sequence_parallel)=12"},
          {"14.3 default p2p", {Set(kComm, "p2p")}, nullptr, ""},
          {"14.3 all_gather", {Set(kComm, "all_gather")}, nullptr, ""},
          {"14.3 a2a", {Set(kComm, "a2a")}, nullptr, ""},
          {"14.3 values", {Set(kComm, "ring")}, kComm, "one of p2p, all_gather, a2a, a2a+p2p"},
          {"14.3 values in a list",
           {Set(kComm, "[\"p2p\",\"ring\",\"a2a\",\"a2a\"]")},
           kComm,
           "item 1: must be one of"},
          {"14.3 one a layer",
           {Set(kComm, "[\"p2p\",\"a2a\",\"all_gather\",\"p2p\"]")},
           nullptr,
           ""},
          {"14.3 too few",
           {Set(kComm, "[\"p2p\",\"a2a\"]")},
           kComm,
           "has 2 values; it must have one for all layers or one for each of model.num_layers=4"},
          {"14.3 too many",
           {Set(kComm, "[\"p2p\",\"p2p\",\"p2p\",\"p2p\",\"p2p\"]")},
           kComm,
           "has 5 values"},
          {"14.3 a2a: query heads % cp",
           {Set(kComm, "a2a"), "model.num_attention_heads=2"},
           kComm,
           "a2a needs query heads (2) and query groups (2) that are multiples of tensor x context"},
          {"14.3 a2a: groups % cp",
           {Set(kComm, "a2a"), "model.num_query_groups=2"},
           kComm,
           "query groups (2)"},
          {"14.3 a2a in one layer",
           {Set(kComm, "[\"p2p\",\"a2a\",\"p2p\",\"p2p\"]"), "model.num_query_groups=2"},
           kComm,
           "a2a needs"},
          {"14.3 a2a after the tensor split",
           {Set(kComm, "a2a"), Set(kTp, 2)},
           kComm,
           "multiples of tensor x context parallel size = 8"},
          {"14.3 p2p needs no such heads", {Set(kTp, 2)}, nullptr, ""},
          {"14.3 a2a+p2p", {Set(kComm, "a2a+p2p"), Set(kLevels, "[2,2]")}, nullptr, ""},
          {"14.3 a2a+p2p needs levels", {Set(kComm, "a2a+p2p")}, kLevels, "must have two levels"},
          {"14.3 two of them",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[4]")},
           kLevels,
           "must have two levels"},
          {"14.3 also in one layer",
           {Set(kComm, "[\"p2p\",\"p2p\",\"p2p\",\"a2a+p2p\"]")},
           kLevels,
           "must have two levels"},
          {"14.3 a level of one degenerates",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[1,4]"), "model.num_query_groups=1"},
           nullptr,
           ""},
          {"14.3 the other too", {Set(kComm, "a2a+p2p"), Set(kLevels, "[4,1]")}, nullptr, ""},
          {"1.2 product of the levels, G1.13",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[2,4]")},
           kLevels,
           "must have parallel.context_parallel_size=4 as its product"},
          {"1.2 also unused", {Set(kLevels, "[2,1]")}, kLevels, "as its product"},
          {"1.3 any number of levels", {Set(kLevels, "[2,1,2]")}, nullptr, ""},
          {"1.3 a level has a rank", {Set(kLevels, "[0,4]")}, kLevels, "between 1 and"},
          {"1.2 a product beyond 64 bits",
           {Set(kLevels, "[10000000,10000000,10000000]")},
           kLevels,
           "as its product"},
          {"14.3 a2a+p2p: heads % level 0",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[2,2]"), "model.num_query_groups=1"},
           kComm,
           "a2a+p2p needs query heads (4) and query groups (1) that are multiples of tensor x "
           "first"},
          {"14.3 after the tensor split",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[4,1]"), Set(kTp, 2)},
           kComm,
           "= 8"},
          {"14.3 heads % level 0 is enough",
           {Set(kComm, "a2a+p2p"), Set(kLevels, "[2,2]"), Set(kTp, 2)},
           nullptr,
           ""},
      });
  ExpectRules({}, {{"14.3 one rank: no split", {"model.seq_length=31"}, nullptr, ""},
                   {"14.3 one rank: a2a of any head",
                    {Set(kComm, "a2a"), "model.num_query_groups=1"},
                    nullptr,
                    ""}});
}

TEST(ReferenceLayoutsTest, Part14Router) {
  const char kBalancing[] = "model.moe_router_load_balancing_type";
  const char kCoeff[] = "model.moe_aux_loss_coeff";
  const char kTopk[] = "model.moe_router_topk";
  const char kGroups[] = "model.moe_router_num_groups";
  const char kGroupTopk[] = "model.moe_router_group_topk";
  const char kBias[] = "model.moe_router_enable_expert_bias";
  const std::string sigmoid = "model.moe_router_score_function=sigmoid";
  const std::string pre_softmax = "model.moe_router_pre_softmax=true";
  const std::string sinkhorn = Set(kBalancing, "sinkhorn");
  ExpectRules(
      {"model.num_experts=8"},
      {
          {"14.4 the defaults", {}, nullptr, ""},
          {"14.4 k <= E", {Set(kTopk, 9)}, kTopk, "at most model.num_experts=8"},
          {"14.4 all of them", {Set(kTopk, 8)}, nullptr, ""},
          {"14.4 softmax over one",
           {Set(kTopk, 1)},
           "model.moe_router_pre_softmax",
           "must be true with moe_router_topk=1"},
          {"14.4 pre_softmax over all", {Set(kTopk, 1), pre_softmax}, nullptr, ""},
          {"14.4 unless sinkhorn", {Set(kTopk, 1), sinkhorn}, nullptr, ""},
          {"14.4 or sigmoid", {Set(kTopk, 1), sigmoid}, nullptr, ""},
          {"14.4 scores",
           {"model.moe_router_score_function=relu"},
           "model.moe_router_score_function",
           "one of softmax, sigmoid"},
          {"14.4 expert bias is sigmoid's",
           {Set(kBias, "true")},
           kBias,
           "needs model.moe_router_score_function=\"sigmoid\""},
          {"14.4 expert bias", {Set(kBias, "true"), sigmoid}, nullptr, ""},
          {"14.4 its rate",
           {"model.moe_router_bias_update_rate=-1"},
           "model.moe_router_bias_update_rate",
           "at least 0"},
          {"14.4 sinkhorn has no loss",
           {sinkhorn, Set(kCoeff, "0.1")},
           kCoeff,
           "must be 0 with sinkhorn"},
          {"14.4 sinkhorn", {sinkhorn}, nullptr, ""},
          {"14.4 no capacity with sinkhorn",
           {sinkhorn, "model.moe_expert_capacity_factor=1"},
           "model.moe_expert_capacity_factor",
           "cannot be set with sinkhorn"},
          {"14.4 no groups with sinkhorn",
           {sinkhorn, Set(kGroups, 2), Set(kGroupTopk, 1)},
           kGroups,
           "no place in sinkhorn"},
          {"14.4 no expert bias with sinkhorn",
           {sinkhorn, sigmoid, Set(kBias, "true")},
           kBias,
           "no place in sinkhorn"},
          {"14.4 several losses",
           {Set(kBalancing, "[\"aux_loss\",\"seq_aux_loss\",\"global_aux_loss\"]"),
            Set(kCoeff, "[0.1,0.2,0.3]")},
           nullptr,
           ""},
          {"14.4 a coefficient a loss",
           {Set(kBalancing, "[\"aux_loss\",\"seq_aux_loss\"]"), Set(kCoeff, "0.1")},
           kCoeff,
           "must have one value for each of the 2"},
          {"14.4 a loss a coefficient",
           {Set(kCoeff, "[0.1,0.2]")},
           kCoeff,
           "must have one value for each of the 1"},
          {"14.4 each once",
           {Set(kBalancing, "[\"aux_loss\",\"aux_loss\"]"), Set(kCoeff, "[0.1,0.2]")},
           kBalancing,
           "names aux_loss twice"},
          {"14.4 sinkhorn is a choice, not a loss",
           {Set(kBalancing, "[\"aux_loss\",\"sinkhorn\"]"), Set(kCoeff, "[0.1,0]")},
           kBalancing,
           "lists sinkhorn among others"},
          {"14.4 none is none",
           {Set(kBalancing, "[\"none\",\"aux_loss\"]"), Set(kCoeff, "[0,0.1]")},
           kBalancing,
           "lists none among others"},
          {"14.4 types",
           {Set(kBalancing, "[\"aux_loss\",\"balance\"]"), Set(kCoeff, "[0,0]")},
           kBalancing,
           "item 1: must be one of aux_loss, seq_aux_loss, global_aux_loss, sinkhorn, none"},
          {"14.4 coefficients", {Set(kCoeff, "[-1]")}, kCoeff, "item 0: must be at least 0"},
          {"14.4 groups", {Set(kGroups, 4), Set(kGroupTopk, 2)}, nullptr, ""},
          {"14.4 equal groups",
           {Set(kGroups, 3), Set(kGroupTopk, 1)},
           kGroups,
           "must divide model.num_experts=8"},
          {"14.4 kept groups <= groups",
           {Set(kTopk, 4), Set(kGroups, 2), Set(kGroupTopk, 3)},
           kGroupTopk,
           "must be at most model.moe_router_num_groups=2"},
          {"14.4 groups without a choice",
           {Set(kGroups, 2)},
           kGroupTopk,
           "is required by model.moe_router_num_groups"},
          {"14.4 a choice without groups",
           {Set(kGroupTopk, 1)},
           kGroupTopk,
           "needs model.moe_router_num_groups"},
          {"14.4 k <= experts of the kept groups",
           {Set(kTopk, 3), Set(kGroups, 4), Set(kGroupTopk, 1)},
           kTopk,
           "must be at most 2, the experts in the 1 groups that are kept"},
          {"14.4 just so many", {Set(kTopk, 2), Set(kGroups, 4), Set(kGroupTopk, 1)}, nullptr, ""},
          {"14.4 a group's score is of k / group_topk >= 1 experts",
           {Set(kTopk, 2), Set(kGroups, 4), Set(kGroupTopk, 3)},
           kGroupTopk,
           "must be at most model.moe_router_topk=2"},
          {"14.4 scaling",
           {"model.moe_router_topk_scaling_factor=0"},
           "model.moe_router_topk_scaling_factor",
           "greater than 0"},
          {"14.4 router dtype",
           {"model.moe_router_dtype=bf16"},
           "model.moe_router_dtype",
           "one of fp32, fp64"},
          {"14.4 jitter",
           {"model.moe_input_jitter_eps=2"},
           "model.moe_input_jitter_eps",
           "between 0 and 1"},
          {"14.4 z-loss", {"model.moe_z_loss_coeff=-1"}, "model.moe_z_loss_coeff", "at least 0"},
          {"14.4 padding is to the capacity",
           {"model.moe_pad_expert_input_to_capacity=true"},
           "model.moe_pad_expert_input_to_capacity",
           "needs model.moe_expert_capacity_factor"},
          {"14.4 capacity > 0",
           {"model.moe_expert_capacity_factor=0"},
           "model.moe_expert_capacity_factor",
           "greater than 0"},
          {"14.4 drop policies",
           {"model.moe_token_drop_policy=random"},
           "model.moe_token_drop_policy",
           "one of probs, position"},
      });
}

TEST(ReferenceLayoutsTest, Part14Experts) {
  const char kFreq[] = "model.moe_layer_freq";
  const char kShared[] = "model.moe_shared_expert_intermediate_size";
  const char kGate[] = "model.moe_shared_expert_gate";
  const char kOverlap[] = "model.moe_shared_expert_overlap";
  const std::string alltoall = "model.moe_token_dispatcher_type=alltoall";
  ExpectRules(
      {"resources.world_size=4", "model.num_experts=4"},
      {
          {"14.5 E % ep", {Set(kEp, 4)}, nullptr, ""},
          {"14.5 E % ep, left over",
           {"model.num_experts=6", Set(kEp, 4)},
           "model.num_experts",
           "must be a multiple of parallel.expert_model_parallel_size=4"},
          {"1.2 W % (etp ep pp)",
           {Set(kEp, 4), Set(kEtp, 2), kNoBias},
           "resources.world_size",
           "expert tensor x expert x pipeline parallel size = 2 x 4 x 1"},
          {"1 ep over dp and cp", {Set(kEp, 4), Set(kCp, 2)}, nullptr, ""},
          {"14.4 tp > 1 needs sequence parallel",
           {Set(kTp, 2), kNoBias},
           "parallel.sequence_parallel",
           "must be true to train experts"},
          {"14.4 tp > 1 with it", {Set(kTp, 2), kNoBias, kSequenceParallel}, nullptr, ""},
          {"14.4 biases need etp 1",
           {Set(kTp, 2), kSequenceParallel},
           "model.add_bias_linear",
           "must be false with experts that are split"},
          {"14.4 also without tp", {Set(kEtp, 2)}, "model.add_bias_linear", "must be false"},
          {"14.4 biases with tp > 1 and etp 1",
           {Set(kTp, 2), Set(kEtp, 1), kSequenceParallel},
           nullptr,
           ""},
          {"14.4 layer frequency", {Set(kFreq, 2)}, nullptr, ""},
          {"14.4 layer list", {Set(kFreq, "[0,1,1,0]")}, nullptr, ""},
          {"14.4 frequency >= 1", {Set(kFreq, 0)}, kFreq, "must be at least 1"},
          {"14.4 a flag a layer",
           {Set(kFreq, "[0,1,1]")},
           kFreq,
           "has 3 values; it must have one, or one for each of model.num_layers=4"},
          {"14.4 0 or 1", {Set(kFreq, "[0,1,2,0]")}, kFreq, "has the item 2"},
          {"14.4 capacity and padding",
           {"model.moe_expert_capacity_factor=1.5", "model.moe_pad_expert_input_to_capacity=true"},
           nullptr,
           ""},
          {"14.5 dispatchers",
           {"model.moe_token_dispatcher_type=flex"},
           "model.moe_token_dispatcher_type",
           "one of allgather, alltoall"},
          {"14.5 weights on inputs: k 1",
           {"model.moe_apply_probs_on_input=true"},
           "model.moe_apply_probs_on_input",
           "needs model.moe_router_topk=1, which is 2"},
          {"14.5 weights on inputs",
           {"model.moe_apply_probs_on_input=true", "model.moe_router_topk=1",
            "model.moe_router_pre_softmax=true"},
           nullptr,
           ""},
          {"14.5 a gate of a shared expert", {Set(kGate, "true")}, kGate, "needs model.moe_shared"},
          {"14.5 shared expert with a gate", {Set(kGate, "true"), Set(kShared, 32)}, nullptr, ""},
          {"14.5 overlap of a shared expert",
           {Set(kOverlap, "true"), alltoall},
           kOverlap,
           "needs model.moe_shared_expert_intermediate_size"},
          {"14.5 overlap with all-to-all",
           {Set(kOverlap, "true"), Set(kShared, 32)},
           kOverlap,
           "needs model.moe_token_dispatcher_type=\"alltoall\""},
          {"14.5 overlapped shared expert",
           {Set(kOverlap, "true"), Set(kShared, 32), alltoall},
           nullptr,
           ""},
          {"14.1 expert width % etp",
           {Set(kEtp, 2), kNoBias, "model.moe_ffn_hidden_size=33"},
           "model.moe_ffn_hidden_size",
           "is 33 for each expert; it must be a multiple of"},
      });
  ExpectRules({}, {{"14.5 ep without experts", {Set(kEp, 2)}, kEp, "needs model.num_experts"},
                   {"14.4 a width without experts",
                    {"model.moe_ffn_hidden_size=32"},
                    "model.moe_ffn_hidden_size",
                    "needs model.num_experts"},
                   {"14.5 a shared expert without others",
                    {Set(kShared, 32)},
                    kShared,
                    "needs model.num_experts"}});
  ExpectRules({"model.num_experts=4", "model.num_layers=1"},
              {{"14.4 a model of one dense layer", {Set(kFreq, "[0]")}, nullptr, ""}});
}

TEST(ReferenceLayoutsTest, Part15MegatronFsdp) {
  const char kFsdp[] = "parallel.use_megatron_fsdp";
  const char kStrategy[] = "parallel.data_parallel_sharding_strategy";
  const char kOuter[] = "parallel.outer_dp_sharding_strategy";
  const char kHash[] = "training.check_weight_hash_across_dp_replicas_interval";
  const std::string on = Set(kFsdp, "true");
  const std::string params = Set(kStrategy, "optim_grads_params");
  const auto with = [&](const char* strategy, std::vector<std::string> more) {
    return Join({"resources.world_size=4", on, Set(kStrategy, strategy)}, more);
  };
  std::vector<Rule> rules = {
      {"15.1 the default shards nothing", {on}, nullptr, ""},
      {"15.1 strategies", with("optim_params", {}), kStrategy,
       "one of no_shard, optim, optim_grads, optim_grads_params"},
      {"15.1 a strategy of what is on", {params}, kStrategy, "needs parallel.use_megatron_fsdp"},
      {"15.1 outer sharding only of all",
       with("optim_grads", {Set(kOuter, "optim"), Set(kInstances, 2)}), kOuter,
       "needs parallel.data_parallel_sharding_strategy=\"optim_grads_params\""},
      {"15.1 outer sharding",
       with("optim_grads_params", {Set(kOuter, "optim"), Set(kInstances, 2)}), nullptr, ""},
      {"15.1 outer replicas", with("optim_grads_params", {Set(kInstances, 2)}), nullptr, ""},
      {"15.1 of what is sharded", with("no_shard", {Set(kInstances, 2)}), kInstances,
       "needs parallel.use_distributed_optimizer, or parallel.use_megatron_fsdp with a strategy"},
      {"1.2 dp cp % n", with("optim", {Set(kInstances, 3)}), kInstances, "must divide"},
      {"15.1 outer strategies", {on, Set(kOuter, "optim_grads")}, kOuter, "one of no_shard, optim"},
      {"15.1 outer sharding of nothing",
       {Set(kOuter, "optim")},
       kOuter,
       "needs parallel.use_megatron_fsdp"},
      {"15.1 no weight-hash check of shards", with("optim_grads_params", {Set(kHash, 2)}), kHash,
       "has no replicas to compare with data_parallel_sharding_strategy optim_grads_params"},
      {"15.1 a check of replicas", with("optim_grads", {Set(kHash, 2)}), nullptr, ""},
      {"15.1 grads force overlap_grad_reduce",
       with("optim_grads", {"parallel.overlap_param_gather=true"}), nullptr, ""},
      {"6.1 optim does not", with("optim", {"parallel.overlap_param_gather=true"}),
       "parallel.overlap_param_gather", "needs parallel.overlap_grad_reduce"},
      {"6.2 padded buckets where there are buckets",
       with("optim", {"parallel.pad_buckets_for_high_nccl_busbw=true"}), nullptr, ""},
      {"6.2 none by unit", with("optim_grads", {"parallel.pad_buckets_for_high_nccl_busbw=true"}),
       "parallel.pad_buckets_for_high_nccl_busbw", "needs parallel.use_distributed_optimizer"},
      {"6.3 per-token loss and averaging collectives",
       with("optim_grads",
            {"parallel.ddp_average_in_collective=true", "training.calculate_per_token_loss=true"}),
       "parallel.ddp_average_in_collective", "excludes training.calculate_per_token_loss"},
      {"15.1 the distributed optimizer's flag is implied",
       with("optim", {"parallel.use_distributed_optimizer=true"}), nullptr, ""},
  };
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    rules.push_back({"15.1 adam", with(strategy, {}), nullptr, ""});
    rules.push_back({"15.1 sgd", with(strategy, {"optimizer.optimizer=sgd"}), nullptr, ""});
    rules.push_back({"15.1 fp16", with(strategy, {"training.fp16=true"}), nullptr, ""});
    rules.push_back(
        {"15.1 with tensor, context and pipeline stages",
         with(strategy, {"resources.world_size=8", Set(kTp, 2), Set(kCp, 2), Set(kPp, 2)}), nullptr,
         ""});
    rules.push_back(
        {"15.1 with experts", with(strategy, {"model.num_experts=4", Set(kEp, 2)}), nullptr, ""});
    for (const char* muon : {"muon", "dist_muon"}) {
      rules.push_back({"15.1 no Muon", with(strategy, {Set("optimizer.optimizer", muon)}), kFsdp,
                       "runs with optimizer adam or sgd only"});
    }
  }
  ExpectRules({}, rules);
}

TEST(ReferenceLayoutsTest, Part15TorchFsdp2) {
  const char kFsdp2[] = "parallel.use_torch_fsdp2";
  const char kReshard[] = "parallel.torch_fsdp2_reshard_after_forward";
  const char kUntied[] = "model.untie_embeddings_and_output_weights=true";
  ExpectRules({Set(kFsdp2, "true"), kUntied},
              {
                  {"15.2 with everything that it needs", {}, nullptr, ""},
                  {"15.2 ZeRO-2", {Set(kReshard, "false")}, nullptr, ""},
                  {"15.2 pp 1", {Set(kPp, 2)}, kFsdp2, "needs pipeline_model_parallel_size=1"},
                  {"15.2 ep 1",
                   {"model.num_experts=4", Set(kEp, 2)},
                   kFsdp2,
                   "needs expert_model_parallel_size=1"},
                  {"15.2 experts with ep 1", {"model.num_experts=4"}, nullptr, ""},
                  {"15.2 no distributed optimizer",
                   {"parallel.use_distributed_optimizer=true"},
                   kFsdp2,
                   "excludes parallel.use_distributed_optimizer"},
                  {"15.2 untied embeddings",
                   {"model.untie_embeddings_and_output_weights=false"},
                   kFsdp2,
                   "needs model.untie_embeddings_and_output_weights"},
                  {"15.2 no fp16", {"training.fp16=true"}, kFsdp2, "excludes training.fp16"},
                  {"15.2 bf16", {"training.bf16=true"}, nullptr, ""},
                  {"15.2 one of the two FSDPs",
                   {"parallel.use_megatron_fsdp=true"},
                   kFsdp2,
                   "excludes parallel.use_megatron_fsdp"},
                  {"15 no Muon",
                   {"optimizer.optimizer=muon"},
                   kFsdp2,
                   "runs with optimizer adam or sgd only"},
                  {"15 nothing to compare",
                   {"training.check_weight_hash_across_dp_replicas_interval=1"},
                   "training.check_weight_hash_across_dp_replicas_interval",
                   "has no replicas to compare with parallel.use_torch_fsdp2"},
                  {"6.6 no instances",
                   {Set(kInstances, 2)},
                   kInstances,
                   "needs parallel.use_distributed_optimizer"},
                  {"14 with tensor parallel ranks", {Set(kTp, 2)}, nullptr, ""},
                  {"14 with context parallel ranks", {Set(kCp, 2)}, nullptr, ""},
              });
  ExpectRules({}, {{"15.2 resharding of what is on",
                    {Set(kReshard, "false")},
                    kReshard,
                    "needs parallel.use_torch_fsdp2"}});
}

// What each strategy cuts and turns on (the table of reference 15.1).
TEST(ReferenceLayoutsTest, Part15WhatIsSharded) {
  const struct {
    std::vector<std::string> settings;
    bool optimizer, gradients, parameters, by_unit, overlap_reduce, overlap_gather;
  } rows[] = {
      {{}, false, false, false, false, false, false},
      {{"use_distributed_optimizer=true"}, true, false, false, false, false, false},
      {{"use_megatron_fsdp=true"}, false, false, false, false, false, false},
      {{"use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim"},
       true,
       false,
       false,
       false,
       false,
       false},
      {{"use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim_grads"},
       true,
       true,
       false,
       true,
       true,
       false},
      {{"use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim_grads_params"},
       true,
       true,
       true,
       true,
       true,
       true},
      {{"use_torch_fsdp2=true"}, true, true, true, true, true, true},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(absl::StrJoin(row.settings, " "));
    std::vector<std::string> settings = {"model.untie_embeddings_and_output_weights=true"};
    for (const std::string& setting : row.settings) settings.push_back("parallel." + setting);
    const DataSharding sharding = DataShardingOf(ParsedWith(settings).parallel);
    EXPECT_EQ(sharding.optimizer, row.optimizer);
    EXPECT_EQ(sharding.gradients, row.gradients);
    EXPECT_EQ(sharding.parameters, row.parameters);
    EXPECT_EQ(sharding.by_unit, row.by_unit);
    EXPECT_EQ(sharding.overlap_grad_reduce, row.overlap_reduce);
    EXPECT_EQ(sharding.overlap_param_gather, row.overlap_gather);
    EXPECT_FALSE(sharding.keeps_units_gathered);
  }
  const JobSpec zero2 =
      ParsedWith({"model.untie_embeddings_and_output_weights=true", "parallel.use_torch_fsdp2=true",
                  "parallel.torch_fsdp2_reshard_after_forward=false"});
  EXPECT_TRUE(DataShardingOf(zero2.parallel).keeps_units_gathered);
}

}  // namespace
}  // namespace muster
