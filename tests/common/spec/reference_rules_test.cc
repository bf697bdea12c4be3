// The reference's rules on topology, pipeline, schedules, sharding, optimizers and tensor
// parallelism, sentence by sentence: what breaks each and the field that the error names.
// (Reference numbers are those of the part and its section.)
#include "rules_fixture.h"

namespace muster {
namespace {

const char kTp[] = "parallel.tensor_model_parallel_size";
const char kPp[] = "parallel.pipeline_model_parallel_size";
const char kVpp[] = "parallel.virtual_pipeline_model_parallel_size";
const char kGroup[] = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
const char kPerVirtualStage[] = "parallel.num_layers_per_virtual_pipeline_stage";
const char kLayout[] = "parallel.pipeline_model_parallel_layout";
const char kFirst[] = "parallel.decoder_first_pipeline_num_layers";
const char kLast[] = "parallel.decoder_last_pipeline_num_layers";
const char kOrder[] = "parallel.order";
const char kInstances[] = "parallel.num_distributed_optimizer_instances";
const char kEmb[] = "parallel.account_for_embedding_in_pipeline_split=true";
const char kLoss[] = "parallel.account_for_loss_in_pipeline_split=true";
const char kFlush[] = "parallel.overlap_p2p_comm_warmup_flush=true";
const char kPartial[] = "training.num_microbatches_with_partial_activation_checkpoints";
const char kDistOpt[] = "parallel.use_distributed_optimizer=true";

TEST(ReferenceRulesTest, Part1RankTopology) {
  // Eight ranks; experts without biases, so that they may be split.
  const std::vector<std::string> base = {"resources.world_size=8", "training.global_batch_size=32",
                                         "model.num_experts=8", "model.add_bias_linear=false",
                                         "parallel.sequence_parallel=true"};
  const std::vector<std::string> moe = {Set(kTp, 2), Set(kPp, 2),
                                        "parallel.expert_tensor_parallel_size=1"};
  ExpectRules(
      base,
      {
          {"1.1 default order", {Set(kTp, 2), Set(kPp, 2)}, nullptr, ""},
          {"1.1 tp-cp-ep-pp-dp", {Set(kPp, 2), Set(kOrder, "tp-cp-ep-pp-dp")}, nullptr, ""},
          {"1.1 any permutation", {Set(kPp, 2), Set(kOrder, "dp-ep-pp-cp-tp")}, nullptr, ""},
          {"1.1 lower-cased", {Set(kPp, 2), Set(kOrder, "TP-CP-EP-DP-PP")}, nullptr, ""},
          {"1.1 names of axes", {Set(kOrder, "tp-cp-ep-dp-xp")}, kOrder, "unknown axis \"xp\""},
          {"1.1 an axis once", {Set(kOrder, "tp-cp-ep-dp-tp")}, kOrder, "names the axis tp twice"},
          {"1.2 W % (tp pp cp), G1.13",
           {Set(kTp, 3), "model.num_attention_heads=6", "model.hidden_size=96",
            "model.seq_length=33", "parallel.expert_tensor_parallel_size=1"},
           "resources.world_size",
           "tensor x pipeline x context parallel size = 3 x 1 x 1"},
          {"1.2 W % (etp ep pp), G1.13",
           {"parallel.expert_model_parallel_size=3", "model.num_experts=9"},
           "resources.world_size",
           "expert tensor x expert x pipeline parallel size = 1 x 3 x 1"},
          {"1.2 v needs pp > 1, G1.13", {Set(kVpp, 2)}, kVpp, "of at least 2"},
          {"2 v of 1 means none", {Set(kVpp, 1)}, nullptr, ""},
          {"1.2 an axis of size 1 may be missing", {Set(kOrder, "tp-ep-dp-pp")}, nullptr, ""},
          {"1.2 a larger one not, G1.13",
           {Set(kOrder, "tp-cp-ep-pp")},
           kOrder,
           "must name the axis dp, whose size is 8"},
          {"1.2 order not ending in pp, dp = edp",
           {Set(kPp, 2), Set(kOrder, "tp-cp-ep-pp-dp")},
           nullptr,
           ""},
          {"1.2 order not ending in pp, dp and edp differ, G1.13",
           Join(moe, {"parallel.expert_model_parallel_size=4", Set(kOrder, "tp-cp-ep-pp-dp")}),
           kOrder, "must end in pp while the data parallel sizes"},
          {"1.2 case-sensitive on the end",
           Join(moe, {"parallel.expert_model_parallel_size=4", Set(kOrder, "tp-cp-ep-dp-PP")}),
           kOrder, "must end in pp while the data parallel sizes"},
          {"1.2 dense and expert pp groups differ",
           Join(moe, {"parallel.expert_model_parallel_size=2", Set(kOrder, "tp-pp-ep-dp-cp")}),
           kOrder, "puts pipeline stages 2 ranks apart for dense layers and 1 for experts"},
          {"1.2 dp cp % n, G1.13",
           {kDistOpt, Set(kInstances, 3)},
           kInstances,
           "must divide data x context parallel size = 8"},
          {"1.2 edp % n",
           {kDistOpt, Set(kInstances, 8), "parallel.expert_model_parallel_size=2"},
           kInstances,
           "and expert data parallel size = 4"},
          {"1.2 n divides both", {kDistOpt, Set(kInstances, 4)}, nullptr, ""},
          {"6.6 instances of what is sharded",
           {Set(kInstances, 2)},
           kInstances,
           "needs parallel.use_distributed_optimizer"},
      });
}

TEST(ReferenceRulesTest, Part2LayerAssignment) {
  const std::vector<std::string> base = {"resources.world_size=4", "training.micro_batch_size=1",
                                         Set(kPp, 4)};
  const auto layers = [](int64_t n, std::vector<std::string> more) {
    more.push_back(absl::StrCat("model.num_layers=", n));
    return more;
  };
  ExpectRules(
      base,
      {
          {"G2.1", layers(16, {Set(kVpp, 2)}), nullptr, ""},
          {"G2.1", layers(10, {Set(kFirst, 1), Set(kLast, 1)}), nullptr, ""},
          {"G2.1", layers(14, {Set(kLast, 2)}), nullptr, ""},
          {"G2.1", layers(12, {Set(kVpp, 2), Set(kFirst, 2), Set(kLast, 2)}), nullptr, ""},
          {"G2.1", layers(14, {kEmb, kLoss}), nullptr, ""},
          {"G2.1", layers(14, {Set(kVpp, 2), kEmb, kLoss}), nullptr, ""},
          {"G2.1", layers(15, {Set(kVpp, 2), kEmb}), nullptr, ""},
          {"G2.1 assert L10 pp4", layers(10, {}), "model.num_layers", "must be a multiple of"},
          {"G2.1 assert L12 pp4 v2", layers(12, {Set(kVpp, 2)}), kVpp, "one has 3"},
          {"G2.1 assert first and emb", layers(10, {Set(kFirst, 1), kEmb}), kFirst,
           "excludes account_for_embedding"},
          {"2.1 assert last and loss", layers(10, {Set(kLast, 1), kLoss}), kLast,
           "excludes account_for_embedding"},
          {"G2.1 assert first3 last3 v2", layers(12, {Set(kVpp, 2), Set(kFirst, 3), Set(kLast, 3)}),
           kVpp, "one has 3"},
          {"G2.1 assert 5 layers over 3 stages", layers(6, {Set(kFirst, 1)}), kFirst,
           "leaves 5 of model.num_layers=6 for 3 other stages"},
          {"2.1 L' with emb and loss", layers(12, {kEmb, kLoss}), "model.num_layers",
           "plus 2 accounted for must be a multiple"},
          {"2 only one of three, layers and v", layers(8, {Set(kVpp, 2), Set(kPerVirtualStage, 1)}),
           kPerVirtualStage, "give only one of"},
          {"2 only one of three, layout and v",
           layers(8, {Set(kVpp, 2), Set(kLayout, "Et|tt|tt|tttL")}), kLayout, "give only one of"},
          {"2 v = ((L + emb + loss) / pp) / n", layers(14, {Set(kPerVirtualStage, 2), kEmb, kLoss}),
           nullptr, ""},
          {"2 both divisions exact", layers(12, {Set(kPerVirtualStage, 2)}), kPerVirtualStage,
           "must divide a stage's 3 layers"},
          {"2 not with uneven stages", layers(10, {Set(kPerVirtualStage, 1), Set(kFirst, 1)}),
           kPerVirtualStage, "excludes decoder_first_pipeline_num_layers"},
          {"G2.2", layers(14, {Set(kLayout, "Et|(tt|)*6tL")}), nullptr, ""},
          {"2.2 stages % pp, G2.3", layers(4, {Set(kLayout, "Et|tt|tL")}), kLayout, "has 3 stages"},
          {"2.2 E first, G2.3", layers(2, {Set(kLayout, "tE||tL|")}), kLayout, "exactly one E"},
          {"2.2 L once and last, G2.3", layers(2, {Set(kLayout, "Et||t|")}), kLayout,
           "exactly one L"},
          {"2.2 L layers, G2.3", layers(3, {Set(kLayout, "Et|||tL")}), kLayout,
           "has 2 layers (t); model.num_layers is 3"},
          {"2.2 empty stages are allowed", layers(3, {Set(kLayout, "Et||t|tL")}), nullptr, ""},
          {"2.2 no other letter", layers(3, {Set(kLayout, "Et|x|t|tL")}), kLayout, "letter 'x'"},
          {"2.2 groups do not nest", layers(3, {Set(kLayout, "E(t(t|)*2)*2L")}), kLayout,
           "do not nest"},
          {"2.2 m needs such layers", layers(3, {Set(kLayout, "Et|t||tmL")}), kLayout,
           "the model has 0"},
          {"2.2 the layout says it all", layers(3, {Set(kLayout, "Et|t||tL"), kEmb}), kLayout,
           "excludes decoder_first"},
      });
  ExpectRules(
      {"model.num_layers=6", Set(kPp, 2), "training.micro_batch_size=1"},
      {{"G2.3", {Set(kLayout, "E|(t|)*3,tt|tL")}, nullptr, ""},
       {"2 VPP on two stages needs overlapped P2P",
        {Set(kVpp, 3), "parallel.overlap_p2p_comm=false"},
        "parallel.overlap_p2p_comm",
        "need at least 3"},
       {"2 the same by layout",
        {Set(kLayout, "E|(t|)*3,tt|tL"), "parallel.overlap_p2p_comm=false"},
        "parallel.overlap_p2p_comm",
        "need at least 3"},
       {"2 without VPP it does not matter", {"parallel.overlap_p2p_comm=false"}, nullptr, ""}});
  ExpectRules({"model.num_layers=6", "resources.world_size=3", Set(kPp, 3), Set(kVpp, 2),
               "training.micro_batch_size=1", "training.global_batch_size=6"},
              {{"2 VPP without overlap on three", {"parallel.overlap_p2p_comm=false"}, nullptr, ""},
               {"4.3 warm-up and flush overlapped too", {kFlush}, nullptr, ""},
               {"4.3 flush needs overlap",
                {kFlush, "parallel.overlap_p2p_comm=false"},
                "parallel.overlap_p2p_comm_warmup_flush",
                "needs parallel.overlap_p2p_comm"}});
  ExpectRules({"model.num_layers=6", Set(kPp, 2)}, {{"4.3 flush needs virtual stages",
                                                     {kFlush},
                                                     "parallel.overlap_p2p_comm_warmup_flush",
                                                     "needs virtual stages"}});
  ExpectRules(
      {"resources.world_size=4"},
      {{"2.4 the padded vocabulary always divides",
        {Set(kTp, 4), "model.vocab_size=50257"},
        nullptr,
        ""},
       {"2.4 positive inputs", {"model.vocab_size=0"}, "model.vocab_size", "between 1 and"}});
}

TEST(ReferenceRulesTest, Part4Schedules) {
  const auto v2 = [](int64_t pp, int64_t microbatches, std::vector<std::string> more) {
    return Join({"model.num_layers=16", "training.micro_batch_size=1",
                 absl::StrCat("resources.world_size=", pp), Set(kPp, pp), Set(kVpp, 2),
                 Set("training.global_batch_size", microbatches)},
                more);
  };
  ExpectRules(
      {}, {
              {"4.3 N is pp by default", v2(4, 8, {}), nullptr, ""},
              {"G4.10 (4,3,2,4)", v2(4, 3, {Set(kGroup, 4)}), "training.global_batch_size",
               "gives 3 microbatches (a batch of 3); the interleaved schedule needs at least 4"},
              {"G4.10 (2,4,2,8)", v2(2, 4, {Set(kGroup, 8)}), "training.global_batch_size",
               "needs at least 8"},
              {"G4.10 (4,8,2,3)", v2(4, 8, {Set(kGroup, 3)}), kGroup, "at least pipeline_model"},
              {"G4.10 (4,6,2,4)", v2(4, 6, {Set(kGroup, 4)}), "training.global_batch_size",
               "the last group of 4 would have 2, fewer than the 4 stages"},
              {"G4.8 m5 N3", v2(2, 5, {Set(kGroup, 3)}), nullptr, ""},
              {"4.3 at each batch of a ramp-up, too few",
               v2(2, 8, {"training.rampup_batch_size=[1,1,100]"}), "training.rampup_batch_size",
               "gives 1 microbatches (a batch of 1)"},
              {"4.3 at each batch of a ramp-up, a short group",
               v2(2, 8, {"training.rampup_batch_size=[2,1,100]"}), "training.rampup_batch_size",
               "gives 3 microbatches (a batch of 3); the last group of 2 would have 1"},
              {"4.3 a ramp-up of whole groups", v2(2, 8, {"training.rampup_batch_size=[2,2,100]"}),
               nullptr, ""},
              {"4.3 in evaluation too", v2(2, 8, {"evaluation.eval_global_batch_size=3"}),
               "evaluation.eval_global_batch_size", "the last group of 2 would have 1"},
              {"4.3 evaluation of whole groups", v2(2, 8, {"evaluation.eval_global_batch_size=6"}),
               nullptr, ""},
              {"4.3 full validation runs one microbatch at a time",
               v2(2, 8, {"data.full_validation=true"}), "data.full_validation",
               "one microbatch at a time"},
              {"4.2 without VPP any number will do",
               {Set(kPp, 2), "training.micro_batch_size=1", "training.global_batch_size=1"},
               nullptr,
               ""},
              {"4 a schedule that fits in memory",
               v2(4, 10000000,
                  {"model.num_layers=200", "parallel.virtual_pipeline_model_parallel_size=50"}),
               "training.global_batch_size", "forward passes"},
          });
}

TEST(ReferenceRulesTest, Part6DataParallelWrapper) {
  const std::string overlap_grads = "parallel.overlap_grad_reduce=true";
  const std::string overlap_params = "parallel.overlap_param_gather=true";
  const std::string muon = "optimizer.optimizer=muon", dist_muon = "optimizer.optimizer=dist_muon";
  ExpectRules(
      {},
      {
          {"6.1 overlap_param_gather with both",
           {overlap_params, overlap_grads, kDistOpt},
           nullptr,
           ""},
          {"6.1 needs overlap_grad_reduce",
           {overlap_params, kDistOpt},
           "parallel.overlap_param_gather",
           "needs parallel.overlap_grad_reduce"},
          {"6.1 needs a sharded optimizer",
           {overlap_params, overlap_grads},
           "parallel.overlap_param_gather",
           "needs parallel.use_distributed_optimizer"},
          {"6.1 or the layer-wise one", {overlap_params, overlap_grads, dist_muon}, nullptr, ""},
          {"6.1 replicated Muon gathers nothing",
           {overlap_params, overlap_grads, muon},
           "parallel.overlap_param_gather",
           "needs parallel.use_distributed_optimizer"},
          {"6.1 bucket size or number",
           {"parallel.ddp_bucket_size=100", "parallel.ddp_num_buckets=2"},
           "parallel.ddp_num_buckets",
           "excludes parallel.ddp_bucket_size"},
          {"6.1 a bucket holds something",
           {"parallel.ddp_bucket_size=0"},
           "parallel.ddp_bucket_size",
           "between 1 and"},
          {"6.2 padded buckets are the distributed optimizer's",
           {"parallel.pad_buckets_for_high_nccl_busbw=true"},
           "parallel.pad_buckets_for_high_nccl_busbw",
           "needs parallel.use_distributed_optimizer"},
          {"6.3 per-token loss and averaging collectives",
           {"parallel.ddp_average_in_collective=true", "training.calculate_per_token_loss=true"},
           "parallel.ddp_average_in_collective",
           "excludes training.calculate_per_token_loss"},
          {"6.1 bf16 gradients are bf16's",
           {"parallel.grad_reduce_in_bf16=true"},
           "parallel.grad_reduce_in_bf16",
           "needs training.bf16"},
          {"6.1 fp32 or bf16 gradients",
           {"training.bf16=true", "parallel.grad_reduce_in_bf16=true",
            "parallel.accumulate_allreduce_grads_in_fp32=true"},
           "parallel.grad_reduce_in_bf16",
           "excludes parallel.accumulate"},
      });
}

TEST(ReferenceRulesTest, Part7Optimizers) {
  const auto muon = [](std::vector<std::string> more) {
    return Join({"optimizer.optimizer=muon"}, more);
  };
  ExpectRules(
      {},
      {
          {"7.2 Muon with bf16", muon({"training.bf16=true"}), nullptr, ""},
          {"7.2 no fp16", muon({"training.fp16=true"}), "optimizer.optimizer", "use bf16"},
          {"7.2 nor layer-wise",
           {"optimizer.optimizer=dist_muon", "training.fp16=true"},
           "optimizer.optimizer",
           "dist_muon cannot run with training.fp16"},
          {"7.2 not over flat shards", muon({kDistOpt}), "parallel.use_distributed_optimizer",
           "excludes optimizer.optimizer=muon"},
          {"7.2 the layer-wise form neither",
           {"optimizer.optimizer=dist_muon", kDistOpt},
           "parallel.use_distributed_optimizer",
           "excludes optimizer.optimizer=dist_muon"},
          {"7.2 momentum below 1", muon({"optimizer.muon_momentum=1.0"}), "optimizer.muon_momentum",
           "between 0 and"},
          {"7.2 at least one step", muon({"optimizer.muon_num_ns_steps=0"}),
           "optimizer.muon_num_ns_steps", "between 1 and"},
          {"7.2 scales", muon({"optimizer.muon_scale_mode=frobenius"}), "optimizer.muon_scale_mode",
           "one of spectral, unit_rms_norm, shape_scaling"},
          {"7.2 tp modes", muon({"optimizer.muon_tp_mode=split"}), "optimizer.muon_tp_mode",
           "one of duplicated, distributed, blockwise"},
          {"7.2 coefficients", muon({"optimizer.muon_coefficient_type=cubic"}),
           "optimizer.muon_coefficient_type", "one of quintic, simple"},
          {"7.2 precision", muon({"optimizer.muon_matmul_precision=low"}),
           "optimizer.muon_matmul_precision", "one of medium, high, highest"},
          {"7.2 extra scale", muon({"optimizer.muon_extra_scale_factor=0"}),
           "optimizer.muon_extra_scale_factor", "greater than 0"},
          {"7.1 betas below 1",
           {"optimizer.adam_beta2=1.0"},
           "optimizer.adam_beta2",
           "between 0 and"},
          {"7.1 decoupled rates go together",
           {"optimizer.decoupled_min_lr=0.1"},
           "optimizer.decoupled_min_lr",
           "needs optimizer.decoupled_lr"},
          {"7.3 clip_grad", {"optimizer.clip_grad=-1"}, "optimizer.clip_grad", "at least 0"},
          {"7.4 0 < min",
           {"training.fp16=true", "training.min_loss_scale=0"},
           "training.min_loss_scale",
           "greater than 0"},
          {"7.4 min <= initial",
           {"training.fp16=true", "training.initial_loss_scale=0.5"},
           "training.min_loss_scale",
           "at most initial_loss_scale"},
          {"7.4 scale > 0",
           {"training.fp16=true", "training.loss_scale=0"},
           "training.loss_scale",
           "greater than 0"},
          {"7.4 interval > 0",
           {"training.loss_scale_window=0"},
           "training.loss_scale_window",
           "between 1 and"},
          {"7.4 hysteresis > 0", {"training.hysteresis=0"}, "training.hysteresis", "between 1 and"},
      });
}

TEST(ReferenceRulesTest, Part14TensorParallelism) {
  const std::vector<std::string> tp4 = {"resources.world_size=4", Set(kTp, 4)};
  ExpectRules(
      tp4,
      {
          {"14.1 four heads on four ranks", {}, nullptr, ""},
          {"14.1 heads % tp",
           {"model.num_attention_heads=2"},
           "model.num_attention_heads",
           "must be a multiple of parallel.tensor_model_parallel_size=4"},
          {"14.1 fewer groups than tp",
           {"model.num_query_groups=2"},
           "model.num_query_groups",
           "must be at least parallel.tensor_model_parallel_size=4"},
          {"14.1 groups % tp",
           {"model.num_attention_heads=12", "model.hidden_size=96", "model.num_query_groups=6"},
           "model.num_query_groups",
           "must be a multiple of parallel.tensor_model_parallel_size=4"},
          {"14.1 ffn % tp",
           {"model.ffn_hidden_size=130"},
           "model.ffn_hidden_size",
           "must be a multiple of"},
          {"14.1 experts' ffn % etp",
           {"model.num_experts=4", "model.add_bias_linear=false", "parallel.sequence_parallel=true",
            "model.moe_ffn_hidden_size=130"},
           "model.moe_ffn_hidden_size",
           "multiple of parallel.expert_tensor_parallel_size=4"},
          {"14.1 shared expert % tp",
           {"model.num_experts=4", "model.add_bias_linear=false", "parallel.sequence_parallel=true",
            "model.moe_shared_expert_intermediate_size=130"},
           "model.moe_shared_expert_intermediate_size",
           "multiple of parallel.tensor_model"},
          {"14 s % tp with sequence parallel",
           {"parallel.sequence_parallel=true", "model.seq_length=30"},
           "model.seq_length",
           "must be a multiple of tensor x context parallel size"},
          {"14 without it any length", {"model.seq_length=30"}, nullptr, ""},
      });
  ExpectRules({}, {{"14 sequence parallel is off on one rank",
                    {"parallel.sequence_parallel=true", "model.seq_length=31"},
                    nullptr,
                    ""}});
}

TEST(ReferenceRulesTest, Part9Batches) {
  const std::string decrease = "training.decrease_batch_size_if_needed=true";
  ExpectRules({},
              {
                  {"9 a multiple of mbs dp",
                   {"training.global_batch_size=9"},
                   "training.global_batch_size",
                   "must be a multiple of training.micro_batch_size x data parallel size = 2 x 2"},
                  {"9 or a decrease",
                   {"training.global_batch_size=9", decrease, "evaluation.eval_iters=0"},
                   nullptr,
                   ""},
                  {"9 to something",
                   {"training.global_batch_size=3", decrease, "evaluation.eval_iters=0"},
                   "training.global_batch_size",
                   "must be at least"},
                  {"9 at each batch of a ramp-up",
                   {decrease, "training.rampup_batch_size=[2,2,100]"},
                   "training.rampup_batch_size",
                   "start must be at least"},
                  {"12 evaluation's batch too",
                   {"training.global_batch_size=9", decrease},
                   "evaluation.eval_global_batch_size",
                   "must be set"},
              });
}

// Megatron's transformer configuration, and part 4's partial checkpointing.
TEST(ReferenceRulesTest, Recomputation) {
  const std::string full = "training.recompute_granularity=full";
  const std::string selective = "training.recompute_granularity=selective";
  const std::string block = "training.recompute_method=block";
  const std::string one = "training.recompute_num_layers=1";
  ExpectRules(
      {},
      {
          {"selective", {selective}, nullptr, ""},
          {"full, block", {full, block, one}, nullptr, ""},
          {"full, uniform", {full, "training.recompute_method=uniform", one}, nullptr, ""},
          {"full needs a method", {full, one}, "training.recompute_method", "is required"},
          {"full needs a number", {full, block}, "training.recompute_num_layers", "is required"},
          {"selective has no method", {selective, block}, "training.recompute_method", "needs"},
          {"selective has no number", {selective, one}, "training.recompute_num_layers", "needs"},
          {"no granularity, no number", {one}, "training.recompute_num_layers", "needs"},
          {"method by name",
           {full, "training.recompute_method=all", one},
           "training.recompute_method",
           "one of uniform, block"},
          {"granularity by name",
           {"training.recompute_granularity=some"},
           "training.recompute_granularity",
           "one of full, selective"},
          {"at least one layer",
           {full, block, "training.recompute_num_layers=0"},
           "training.recompute_num_layers",
           "between 1 and"},
          {"at most the layers of a rank",
           {full, block, "training.recompute_num_layers=5"},
           "training.recompute_num_layers",
           "at most 4"},
          {"which are fewer with pipelining",
           {full, block, Set(kPp, 2), "training.recompute_num_layers=3"},
           "training.recompute_num_layers",
           "at most 2"},
          {"the longest stage counts",
           {full, block, Set(kPp, 2), Set(kFirst, 1), Set(kLast, 3),
            "training.recompute_num_layers=3"},
           nullptr,
           ""},
          {"by layout too",
           {full, block, Set(kPp, 2), Set(kLayout, "Et|tttL"), "training.recompute_num_layers=4"},
           "training.recompute_num_layers",
           "at most 3"},
          {"4.2 partial checkpoints", {Set(kPp, 2), Set(kPartial, 1)}, nullptr, ""},
          {"4.2 with block", {Set(kPp, 2), Set(kPartial, 0), full, block, one}, nullptr, ""},
          {"4.2 with selective", {Set(kPp, 2), Set(kPartial, 7), selective}, nullptr, ""},
          {"4.2 needs stages", {Set(kPartial, 1)}, kPartial, "of at least 2"},
          {"4.2 uniform leaves nothing to add",
           {Set(kPp, 2), Set(kPartial, 1), full, "training.recompute_method=uniform", one},
           kPartial,
           "use block"},
          {"4.2 not negative", {Set(kPp, 2), Set(kPartial, -1)}, kPartial, "between 0 and"},
          {"unknown module",
           {selective, "training.recompute_modules=[\"mlp\"]"},
           "training.recompute_modules",
           "core_attn can"},
          {"no module",
           {selective, "training.recompute_modules=[]"},
           "training.recompute_modules",
           "must name core_attn"},
          {"a module twice",
           {selective, "training.recompute_modules=[\"core_attn\",\"core_attn\"]"},
           "training.recompute_modules",
           "twice"},
      });
}

}  // namespace
}  // namespace muster
