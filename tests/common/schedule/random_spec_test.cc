// Random specs: what Validate lets through, the pure pieces accept (topology, layers, schedules of
// every step, plan), and what they refuse, Validate has refused with a field. So no job finds a bad
// combination by a crash.
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/plan.h"
#include "common/schedule/schedule_check.h"
#include "common/spec/data_sharding.h"
#include "common/spec/validate.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t UpTo(int64_t n) { return 1 + static_cast<int64_t>(random_() % n); }
  bool OneIn(int n) { return random_() % n == 0; }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  std::optional<int64_t> Perhaps(int one_in, int64_t up_to) {
    if (!OneIn(one_in)) return std::nullopt;
    return UpTo(up_to);
  }

 private:
  std::mt19937_64 random_;
};

// A layout of `layers` layers, mostly well formed.
std::string DrawLayout(Draw* draw, int64_t layers, int64_t pp) {
  std::string text = draw->OneIn(20) ? "" : "E";
  const int64_t num_stages = pp * draw->UpTo(3) - (draw->OneIn(10) ? 1 : 0);
  int64_t left = draw->OneIn(15) ? layers + 1 : layers;
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    if (stage > 0) text += "|";
    const int64_t here =
        stage == num_stages - 1 ? left : std::min<int64_t>(left, draw->UpTo(4) - 1);
    if (here > 0) absl::StrAppend(&text, draw->OneIn(2) ? "t*" : "(t)*", here);
    left -= here;
  }
  return text + (draw->OneIn(20) ? "" : "L");
}

// A list as long as the model's layers, or nearly.
template <class T>
std::vector<T> DrawPerLayer(Draw* draw, int64_t layers, std::initializer_list<T> values) {
  std::vector<T> list;
  const int64_t size = draw->OneIn(10) ? layers + 1 : layers;
  for (int64_t i = 0; i < size; ++i) list.push_back(draw->Of(values));
  return list;
}

void DrawContext(Draw* draw, JobSpec* spec) {
  ParallelSpec& p = spec->parallel;
  const int64_t cp = p.context_parallel_size;
  const auto types = {"p2p", "p2p", "all_gather", "a2a", "a2a+p2p"};
  p.cp_comm_type = {draw->Of(types)};
  if (draw->OneIn(4)) {
    p.cp_comm_type.clear();
    for (const char* type : DrawPerLayer(draw, spec->model.num_layers, types)) {
      p.cp_comm_type.emplace_back(type);
    }
  }
  if (draw->OneIn(2)) {
    const int64_t inner = draw->Of<int64_t>({1, 2, cp});
    p.hierarchical_context_parallel_sizes = {inner, draw->OneIn(6) ? cp : cp / inner};
  }
}

// Mostly well formed: what a random spec of so many options seldom is.
void DrawExperts(Draw* draw, JobSpec* spec) {
  ModelSpec& m = spec->model;
  ParallelSpec& p = spec->parallel;
  m.num_experts = draw->Of<int64_t>({2, 4, 6, 8});
  m.add_bias_linear = draw->OneIn(5);
  if (draw->OneIn(3)) p.expert_model_parallel_size = draw->Of<int64_t>({2, 2, 3});
  p.expert_tensor_parallel_size = draw->Perhaps(2, 2);
  if (!draw->OneIn(10)) p.sequence_parallel = true;
  if (draw->OneIn(3)) m.moe_layer_freq = {draw->UpTo(3) - (draw->OneIn(8) ? 1 : 0)};
  if (draw->OneIn(4)) m.moe_layer_freq = DrawPerLayer<int64_t>(draw, m.num_layers, {0, 1, 1});
  m.moe_router_topk = draw->Of<int64_t>({1, 2, 2, 2, 3});
  m.moe_router_pre_softmax = m.moe_router_topk == 1 ? !draw->OneIn(6) : draw->OneIn(3);
  if (draw->OneIn(3)) m.moe_router_score_function = "sigmoid";
  m.moe_router_enable_expert_bias = draw->OneIn(m.moe_router_score_function == "sigmoid" ? 2 : 30);
  if (draw->OneIn(5)) {
    m.moe_router_num_groups = draw->OneIn(2) ? 2 : draw->UpTo(4);
    m.moe_router_group_topk = draw->Perhaps(1, 2);
  }
  if (draw->OneIn(4)) {
    m.moe_router_load_balancing_type = {
        draw->Of<const char*>({"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"})};
    m.moe_aux_loss_coeff = {draw->OneIn(2) ? 0.0 : 0.01};
  } else if (draw->OneIn(4)) {
    m.moe_router_load_balancing_type = {"aux_loss", "seq_aux_loss"};
    m.moe_aux_loss_coeff = {0.01, 0.02};
    if (draw->OneIn(6)) m.moe_aux_loss_coeff.pop_back();
  }
  if (draw->OneIn(3)) m.moe_expert_capacity_factor = draw->Of({0.5, 1.0, 4.0});
  m.moe_pad_expert_input_to_capacity = draw->OneIn(m.moe_expert_capacity_factor ? 2 : 30);
  if (draw->OneIn(2)) m.moe_token_dispatcher_type = "alltoall";
  m.moe_grouped_gemm = draw->OneIn(2);
  m.moe_apply_probs_on_input = draw->OneIn(m.moe_router_topk == 1 ? 2 : 30);
  m.moe_ffn_hidden_size =
      draw->OneIn(3) ? std::optional<int64_t>(2 * draw->UpTo(30)) : draw->Perhaps(10, 60);
  if (draw->OneIn(3)) {
    m.moe_shared_expert_intermediate_size = p.tensor_model_parallel_size * draw->UpTo(20);
  }
  const bool has_shared = m.moe_shared_expert_intermediate_size.has_value();
  m.moe_shared_expert_gate = draw->OneIn(has_shared ? 3 : 30);
  m.moe_shared_expert_overlap =
      draw->OneIn(has_shared && m.moe_token_dispatcher_type == "alltoall" ? 3 : 40);
}

void DrawSharding(Draw* draw, JobSpec* spec) {
  ParallelSpec& p = spec->parallel;
  if (draw->OneIn(6)) {
    p.use_megatron_fsdp = true;
    p.data_parallel_sharding_strategy =
        draw->Of<const char*>({"no_shard", "optim", "optim_grads", "optim_grads_params"});
    if (draw->OneIn(8)) p.outer_dp_sharding_strategy = "optim";
  } else if (draw->OneIn(12)) {
    p.use_torch_fsdp2 = true;
    p.torch_fsdp2_reshard_after_forward = draw->OneIn(2);
    p.use_distributed_optimizer = draw->OneIn(8);
  }
  if (draw->OneIn(30)) spec->training.check_weight_hash_across_dp_replicas_interval = 2;
}

JobSpec DrawSpec(uint64_t seed) {
  Draw draw(seed);
  JobSpec spec;
  spec.data.dataset_provider = "mock";
  spec.parallel.distributed_backend = "gloo";
  ModelSpec& m = spec.model;
  ParallelSpec& p = spec.parallel;
  TrainingSpec& t = spec.training;
  const int64_t tp = draw.Of<int64_t>({1, 1, 1, 2, 2, 3, 4});
  const int64_t pp = draw.Of<int64_t>({1, 2, 2, 3, 4});
  const int64_t dp = draw.Of<int64_t>({1, 1, 2, 3, 4});
  const int64_t cp = draw.OneIn(6) ? draw.Of<int64_t>({2, 2, 4}) : 1;
  spec.resources.world_size = tp * pp * dp * cp + (draw.OneIn(20) ? 1 : 0);
  p.tensor_model_parallel_size = tp;
  p.pipeline_model_parallel_size = pp;
  p.context_parallel_size = cp;
  p.sequence_parallel = draw.OneIn(2);

  m.num_layers = pp * draw.UpTo(6) + (draw.OneIn(10) ? 1 : 0);
  m.num_attention_heads = tp * draw.UpTo(3) + (draw.OneIn(20) ? 1 : 0);
  m.hidden_size = m.num_attention_heads * 2 * draw.UpTo(4);
  if (draw.OneIn(4)) m.num_query_groups = draw.OneIn(2) ? tp : draw.UpTo(4);
  m.seq_length = draw.OneIn(10) ? draw.UpTo(32) : 2 * tp * cp * draw.UpTo(4);
  m.ffn_hidden_size = draw.OneIn(5) ? draw.UpTo(100) : tp * draw.UpTo(40);
  m.swiglu = draw.OneIn(3);
  m.untie_embeddings_and_output_weights = draw.OneIn(2);
  if (cp > 1 || draw.OneIn(20)) DrawContext(&draw, &spec);
  if (draw.OneIn(3)) DrawExperts(&draw, &spec);
  if (draw.OneIn(6)) {
    p.order =
        draw.Of<const char*>({"tp-cp-ep-pp-dp", "dp-pp-tp-cp-ep", "pp-dp-tp-ep-cp", "tp-dp-pp",
                              "tp-cp-ep-dp", "tp-pp-ep-dp-cp", "TP-CP-EP-DP-PP", "tp-tp"});
  }

  if (draw.OneIn(3)) {
    p.virtual_pipeline_model_parallel_size = draw.UpTo(3);
  } else if (draw.OneIn(6)) {
    p.num_layers_per_virtual_pipeline_stage = draw.UpTo(3);
  } else if (draw.OneIn(4)) {
    p.pipeline_model_parallel_layout = DrawLayout(&draw, m.num_layers, pp);
  }
  if (draw.OneIn(40)) p.num_layers_per_virtual_pipeline_stage = draw.UpTo(3);
  p.decoder_first_pipeline_num_layers = draw.Perhaps(10, 4);
  p.decoder_last_pipeline_num_layers = draw.Perhaps(10, 4);
  p.account_for_embedding_in_pipeline_split = draw.OneIn(10);
  p.account_for_loss_in_pipeline_split = draw.OneIn(10);
  if (draw.OneIn(3)) p.microbatch_group_size_per_virtual_pipeline_stage = pp - 1 + draw.UpTo(3);
  p.overlap_p2p_comm = !draw.OneIn(5);
  p.overlap_p2p_comm_warmup_flush = draw.OneIn(12);

  p.use_distributed_optimizer = draw.OneIn(2);
  p.overlap_grad_reduce = draw.OneIn(2);
  p.overlap_param_gather = draw.OneIn(4);
  p.align_grad_reduce = draw.OneIn(2);
  p.pad_buckets_for_high_nccl_busbw = draw.OneIn(20);
  DrawSharding(&draw, &spec);
  if (draw.OneIn(8)) p.num_distributed_optimizer_instances = draw.UpTo(3);
  p.ddp_num_buckets = draw.Perhaps(8, 4);
  p.ddp_bucket_size = draw.Perhaps(12, 1000);
  p.ddp_average_in_collective = draw.OneIn(6);

  t.micro_batch_size = draw.UpTo(2);
  t.train_iters = draw.UpTo(50);
  const int64_t step = t.micro_batch_size * dp;
  t.global_batch_size = step * draw.UpTo(12) + (draw.OneIn(10) ? 1 : 0);
  t.decrease_batch_size_if_needed = draw.OneIn(8);
  if (draw.OneIn(5)) {
    t.rampup_batch_size = {draw.OneIn(3) ? draw.UpTo(8) : step * draw.UpTo(3),
                           draw.OneIn(3) ? draw.UpTo(4) : step, draw.UpTo(100)};
  }
  if (draw.OneIn(5)) spec.evaluation.eval_global_batch_size = step * draw.UpTo(6);
  t.fp16 = draw.OneIn(6);
  t.bf16 = draw.OneIn(6);
  t.calculate_per_token_loss = draw.OneIn(5);
  if (draw.OneIn(4)) t.recompute_granularity = draw.Of<const char*>({"full", "selective"});
  if (draw.OneIn(4)) t.recompute_method = draw.Of<const char*>({"uniform", "block"});
  t.recompute_num_layers = draw.Perhaps(4, 4);
  t.num_microbatches_with_partial_activation_checkpoints = draw.Perhaps(10, 3);
  spec.optimizer.lr = 1e-3;
  spec.optimizer.optimizer = draw.Of<const char*>({"adam", "adam", "sgd", "muon", "dist_muon"});
  return spec;
}

// Every number of microbatches that the job may meet, the ramp-up's batches by walking through it.
absl::StatusOr<std::vector<int64_t>> MicrobatchesOfSteps(const JobSpec& spec,
                                                         const ResolvedSpec& resolved) {
  ASSIGN_OR_RETURN(const MicrobatchCalculator calculator,
                   MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, resolved)));
  std::vector<int64_t> counts;
  const int64_t past_ramp =
      spec.training.rampup_batch_size.has_value() ? (*spec.training.rampup_batch_size)[2] + 1 : 0;
  for (int64_t consumed = 0; consumed <= past_ramp;) {
    ASSIGN_OR_RETURN(const BatchSizes sizes, calculator.CheckedSizes(consumed));
    counts.push_back(sizes.num_microbatches);
    consumed += sizes.running_batch_size;
  }
  return counts;
}

// What runs would ask of the pure pieces.
absl::Status TryAll(const JobSpec& spec) {
  ASSIGN_OR_RETURN(const RankTopology topology, RankTopology::Create(TopologyOf(spec)));
  const ResolvedSpec resolved = Resolve(spec, 257);
  if (topology.dp() != resolved.data_parallel_size) return absl::InternalError("two dp sizes");
  ASSIGN_OR_RETURN(const LayerSplit split, LayerSplitOf(spec));
  ASSIGN_OR_RETURN(const LayerTable layers, AssignLayers(split));
  ASSIGN_OR_RETURN(std::vector<int64_t> counts, MicrobatchesOfSteps(spec, resolved));
  for (const int64_t microbatches : counts) {
    const ScheduleOptions options = ScheduleOptionsOf(spec, split.virtual_pp, microbatches);
    ASSIGN_OR_RETURN(const PipelineSchedule schedule, MakePipelineSchedule(options));
    if (static_cast<int>(schedule.size()) != topology.pp()) return absl::InternalError("stages");
    if (microbatches == counts.back()) RETURN_IF_ERROR(CheckSchedule(options, schedule));
  }
  // Evaluation, on unless eval_iters is 0.
  ASSIGN_OR_RETURN(
      const int64_t evaluated,
      EvalMicrobatches(spec.evaluation.eval_global_batch_size.value_or(resolved.global_batch_size),
                       spec.training.micro_batch_size, resolved.data_parallel_size));
  RETURN_IF_ERROR(
      MakePipelineSchedule(ForwardOnlyScheduleOptionsOf(spec, split.virtual_pp, evaluated))
          .status());
  ASSIGN_OR_RETURN(const JobPlan plan, MakePlan(spec, resolved));
  return static_cast<int64_t>(plan.stages.size()) == split.pp ? absl::OkStatus()
                                                              : absl::InternalError("plan");
}

TEST(RandomSpecTest, WhatIsRefusedLaterIsAnErrorOfTheSpec) {
  const uint64_t first_seed = 20260830;
  std::cout << "seeds " << first_seed << " and up\n";
  int num_good = 0, num_interleaved = 0, num_refused_later = 0;
  int num_context = 0, num_experts = 0, num_by_unit = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 20000; ++seed) {
    const JobSpec spec = DrawSpec(seed);
    const std::vector<SpecProblem> problems = Validate(spec);
    // The pieces ask for sizes that divide; the topology's own refusals come first.
    const absl::Status status = problems.empty() || RankTopology::Create(TopologyOf(spec)).ok()
                                    ? TryAll(spec)
                                    : absl::InvalidArgumentError("topology");
    if (problems.empty()) {
      ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << JobSpecToJson(spec);
      ++num_good;
      if (LayerSplitOf(spec)->virtual_pp > 1) ++num_interleaved;
      if (spec.parallel.context_parallel_size > 1) ++num_context;
      if (spec.model.num_experts.has_value()) ++num_experts;
      if (DataShardingOf(spec.parallel).by_unit) ++num_by_unit;
    }
    if (!status.ok()) {
      ++num_refused_later;
      ASSERT_FALSE(problems.empty()) << "seed " << seed << ": " << status;
    }
    for (const SpecProblem& problem : problems) {
      EXPECT_FALSE(problem.field.empty()) << "seed " << seed;
      EXPECT_FALSE(problem.message.empty()) << "seed " << seed;
    }
  }
  // The draw is no use if it hits only one side.
  EXPECT_GT(num_good, 600);
  EXPECT_GT(num_interleaved, 60);
  EXPECT_GT(num_refused_later, 600);
  EXPECT_GT(num_context, 60);
  EXPECT_GT(num_experts, 60);
  EXPECT_GT(num_by_unit, 60);
}

}  // namespace
}  // namespace muster
