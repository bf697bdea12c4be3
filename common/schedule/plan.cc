#include "common/schedule/plan.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/model_size.h"

namespace muster {
namespace {

int64_t ParameterSize(const TrainingSpec& training) {  // bytes
  if (training.fp64) return 8;
  return training.fp16 || training.bf16 ? 2 : 4;
}

// How many ranks share one copy of each kind of state.
struct Sharding {
  int64_t parameters = 1, gradients = 1, optimizer = 1;
};

Sharding ShardingOf(const ParallelSpec& p, int64_t replicas) {
  if (p.use_torch_fsdp2) return {replicas, replicas, replicas};
  Sharding sharding;
  if (p.use_megatron_fsdp) {
    const std::string& strategy = p.data_parallel_sharding_strategy;
    if (strategy == "optim_grads_params") sharding.parameters = replicas;
    if (strategy == "optim_grads_params" || strategy == "optim_grads") {
      sharding.gradients = replicas;
    }
    if (strategy != "no_shard") sharding.optimizer = replicas;
    return sharding;
  }
  if (p.use_distributed_optimizer) {
    sharding.optimizer = std::max<int64_t>(1, replicas / p.num_distributed_optimizer_instances);
  }
  return sharding;
}

int64_t Share(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks; }

// Bytes of optimizer state for each parameter: matrices and others may differ (Muon).
struct StateSize {
  int64_t matrix = 0, other = 0;
};
StateSize OptimizerStateSize(const JobSpec& spec) {
  const int64_t moment = spec.training.fp64 ? 8 : 4;
  const int64_t main = ParameterSize(spec.training) == 2 ? 4 : 0;
  const OptimizerSpec& o = spec.optimizer;
  const int64_t sgd = (o.sgd_momentum != 0 ? moment : 0) + main;
  if (o.optimizer == "sgd") return {sgd, sgd};
  const int64_t adam = 2 * moment + main;
  if (UsesMuon(o)) return {moment + main, o.muon_scalar_optimizer == "sgd" ? sgd : adam};
  return {adam, adam};
}

// Activations of one microbatch on one rank.
class ActivationModel {
 public:
  ActivationModel(const JobSpec& spec, const ResolvedSpec& resolved)
      : spec_(spec),
        r_(resolved),
        tp_(spec.parallel.tensor_model_parallel_size),
        dtype_(ParameterSize(spec.training)),
        tokens_(spec.training.micro_batch_size * spec.model.seq_length /
                spec.parallel.context_parallel_size) {}

  // Bytes of a chunk between its forward and its backward pass.
  double ChunkBytes(const ChunkLayers& chunk) const {
    const double h = spec_.model.hidden_size;
    double bytes = static_cast<double>(chunk.layers.size()) * LayerBytes();
    if (chunk.embedding && spec_.model.hidden_dropout > 0) bytes += tokens_ * h / Replicated();
    if (chunk.loss) {
      bytes += 2 * tokens_ * h * dtype_ / Replicated();  // inputs of final norm and output layer
      bytes += tokens_ * r_.padded_vocab_size / tp_ * std::max(dtype_, 4.0);  // logits for the loss
    }
    return bytes;
  }
  // What one layer needs on top while it is recomputed.
  double RecomputeBytes() const {
    return spec_.training.recompute_granularity == "full" ? FullLayerBytes() : 0;
  }

 private:
  // Tensors outside the tensor-parallel regions: split by sequence parallelism only.
  double Replicated() const { return spec_.parallel.sequence_parallel ? tp_ : 1; }

  double LayerBytes() const {
    if (spec_.training.recompute_granularity != "full") return FullLayerBytes();
    return tokens_ * spec_.model.hidden_size * dtype_ / Replicated();  // its input
  }
  double FullLayerBytes() const {
    const ModelSpec& m = spec_.model;
    const double h = m.hidden_size;
    const double query = static_cast<double>(r_.kv_channels * m.num_attention_heads);
    const double key_value = static_cast<double>(r_.kv_channels * r_.num_query_groups);
    const double mask = m.hidden_dropout > 0 ? h : 0;  // one byte an element

    // Inputs of both norms and of both column-parallel products; two dropout masks.
    double replicated = (4 * h) * dtype_ + 2 * mask;
    // Query, key, value, and the input of the output projection.
    double split = (2 * query + 2 * key_value) * dtype_;
    const bool recomputes_core = spec_.training.recompute_granularity == "selective";
    if (m.attention_dropout > 0 && !recomputes_core) {
      // Softmax output, dropout output, dropout mask: heads x keys for every query.
      split += static_cast<double>(m.num_attention_heads) * static_cast<double>(m.seq_length) *
               (2 * dtype_ + 1);
    }
    const double widths = m.swiglu ? 3 : 2;  // inputs of the activation and of the second product
    if (m.num_experts.has_value()) {
      const double topk = static_cast<double>(m.moe_router_topk);
      const double ffn = m.moe_ffn_hidden_size.value_or(r_.ffn_hidden_size);
      const double shared = m.moe_shared_expert_intermediate_size.value_or(0);
      split += widths * (topk * ffn + shared) * dtype_;
      replicated += (topk - 1) * h * dtype_;  // a copy of the token for each expert it goes to
    } else {
      split += widths * static_cast<double>(r_.ffn_hidden_size) * dtype_;
    }
    return tokens_ * (replicated / Replicated() + split / tp_);
  }

  const JobSpec& spec_;
  const ResolvedSpec& r_;
  const double tp_, dtype_, tokens_;
};

// The most bytes of activations held at once while a rank's schedule runs.
double PeakBytes(const RankSchedule& schedule, const std::vector<double>& chunk_bytes) {
  double held = 0, peak = 0;
  for (const ScheduleOp& op : schedule) {
    if (op.kind == ScheduleOp::Kind::kForward) {
      held += chunk_bytes[op.chunk];
      peak = std::max(peak, held);
    }
    if (op.kind == ScheduleOp::Kind::kBackward) held -= chunk_bytes[op.chunk];
  }
  return peak;
}

// A step as short as possible that still holds as much at once as one of `num_microbatches`.
int ShortestFullStep(const ScheduleOptions& options, int64_t num_microbatches) {
  const int64_t group =
      options.microbatch_group_size == 0 ? options.pp : options.microbatch_group_size;
  const int64_t enough = options.virtual_pp == 1 ? options.pp : 4 * group;
  if (num_microbatches <= enough + group) return static_cast<int>(num_microbatches);
  return static_cast<int>(enough + num_microbatches % group);
}

RankPlan PlanStage(const JobSpec& spec, const ResolvedSpec& resolved,
                   const std::vector<ChunkLayers>& chunks) {
  const ParallelSpec& p = spec.parallel;
  const int64_t etp = p.expert_tensor_parallel_size.value_or(p.tensor_model_parallel_size);
  const int64_t expert_dp = std::max<int64_t>(
      1, spec.resources.world_size /
             (etp * p.expert_model_parallel_size * p.pipeline_model_parallel_size));
  const Sharding dense = ShardingOf(p, resolved.data_parallel_size * p.context_parallel_size);
  const Sharding experts = ShardingOf(p, expert_dp);
  const ParameterCount count = CountRankParameters(spec, resolved, chunks);

  const int64_t parameter_size = ParameterSize(spec.training);
  const int64_t gradient_size =
      resolved.grads_in_fp32 ? std::max<int64_t>(4, parameter_size) : parameter_size;
  const StateSize state = OptimizerStateSize(spec);
  const int64_t num_dense = count.dense_matrices + count.dense_other;
  const int64_t num_expert = count.expert_matrices + count.expert_other;
  RankPlan plan;
  plan.parameters = Share(num_dense, dense.parameters) + Share(num_expert, experts.parameters);
  plan.parameter_bytes = parameter_size * plan.parameters;
  plan.gradient_bytes =
      gradient_size * (Share(num_dense, dense.gradients) + Share(num_expert, experts.gradients));
  plan.optimizer_bytes = state.matrix * (Share(count.dense_matrices, dense.optimizer) +
                                         Share(count.expert_matrices, experts.optimizer)) +
                         state.other * (Share(count.dense_other, dense.optimizer) +
                                        Share(count.expert_other, experts.optimizer));
  return plan;
}

}  // namespace

const RankPlan& JobPlan::largest() const {
  MUSTER_CHECK(!stages.empty());
  return *std::max_element(stages.begin(), stages.end(), [](const RankPlan& a, const RankPlan& b) {
    return a.total_bytes() < b.total_bytes();
  });
}

absl::StatusOr<JobPlan> MakePlan(const JobSpec& spec, const ResolvedSpec& resolved) {
  ASSIGN_OR_RETURN(const LayerSplit split, LayerSplitOf(spec));
  ASSIGN_OR_RETURN(const LayerTable layers, AssignLayers(split));
  ASSIGN_OR_RETURN(const MicrobatchCalculator calculator,
                   MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, resolved)));
  const int64_t past_rampup =
      spec.training.rampup_batch_size.has_value() ? calculator.options().rampup->samples + 1 : 0;
  ASSIGN_OR_RETURN(const BatchSizes sizes, calculator.CheckedSizes(past_rampup));

  JobPlan plan;
  plan.total_parameters = CountParameters(spec, resolved).total();
  plan.num_microbatches = sizes.num_microbatches;
  plan.flops_per_iteration =
      FlopsOfBatch(FlopsModelOf(spec, resolved), sizes.running_batch_size, spec.model.seq_length);
  ScheduleOptions options = ScheduleOptionsOf(spec, split.virtual_pp, sizes.num_microbatches);
  RETURN_IF_ERROR(CheckScheduleOptions(options));
  plan.bubble_fraction = BubbleFraction(options);
  options.num_microbatches = ShortestFullStep(options, sizes.num_microbatches);
  const ActivationModel activations(spec, resolved);
  for (int rank = 0; rank < split.pp; ++rank) {
    RankPlan& stage = plan.stages.emplace_back(PlanStage(spec, resolved, layers[rank]));
    std::vector<double> chunk_bytes;
    for (const ChunkLayers& chunk : layers[rank]) {
      chunk_bytes.push_back(activations.ChunkBytes(chunk));
    }
    ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, rank));
    stage.activation_bytes =
        static_cast<int64_t>(PeakBytes(schedule, chunk_bytes) + activations.RecomputeBytes());
  }
  return plan;
}

}  // namespace muster
