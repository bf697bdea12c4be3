#include "common/schedule/plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/activation_memory.h"
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

// Layer-wise Muon: whole parameters are dealt out from the smallest to the largest, back and forth,
// so that all ranks get about the same, but for the one with the embedding, if that has no like.
// State of that rank.
int64_t LayerWiseBytes(const JobSpec& spec, const ResolvedSpec& resolved,
                       const std::vector<ChunkLayers>& chunks, int64_t total_bytes,
                       const StateSize& state) {
  const ParallelSpec& p = spec.parallel;
  const int64_t tp = p.tensor_model_parallel_size, hidden = spec.model.hidden_size;
  int64_t num_tables = 0;
  for (const ChunkLayers& chunk : chunks) {
    num_tables += chunk.embedding ? 1 : 0;
    const bool is_tied_here =
        !spec.model.untie_embeddings_and_output_weights && p.pipeline_model_parallel_size == 1;
    num_tables += chunk.loss && !is_tied_here ? 1 : 0;
  }
  const int64_t table = state.other * (resolved.padded_vocab_size / tp) * hidden;
  const int64_t next =
      state.matrix * (resolved.ffn_hidden_size / tp) * hidden * (spec.model.swiglu ? 2 : 1);
  const int64_t surplus = num_tables == 1 ? std::max<int64_t>(0, table - next) : 0;
  const int64_t ranks = resolved.data_parallel_size * p.context_parallel_size;
  return (total_bytes + surplus * (ranks - 1)) / ranks;
}

// Of one chunk, by ScheduleOp::recompute of the forward pass.
using ChunkBytes = std::array<ActivationBytes, 2>;

// The most bytes of activations held at once while a rank's schedule runs.
int64_t PeakBytes(const RankSchedule& schedule, const std::vector<ChunkBytes>& chunks) {
  int64_t held = 0, peak = 0;
  std::set<std::pair<int, int>> recomputed;  // chunk, microbatch
  for (const ScheduleOp& op : schedule) {
    const std::pair<int, int> pass = {op.chunk, op.microbatch};
    if (op.kind == ScheduleOp::Kind::kForward) {
      if (op.recompute) recomputed.insert(pass);
      const ActivationBytes& bytes = chunks[op.chunk][op.recompute ? 1 : 0];
      peak = std::max(peak, held + bytes.forward_peak);
      held += bytes.kept;
    }
    if (op.kind == ScheduleOp::Kind::kBackward) {
      const ActivationBytes& bytes = chunks[op.chunk][recomputed.erase(pass)];
      held -= bytes.kept;
      peak = std::max(peak, held + bytes.backward_peak);
    }
  }
  return peak;
}

// A step as short as possible that still holds as much at once as one of `num_microbatches`.
int ShortestFullStep(const ScheduleOptions& options, int64_t num_microbatches) {
  const int64_t group =
      options.microbatch_group_size == 0 ? options.pp : options.microbatch_group_size;
  int64_t enough = options.virtual_pp == 1 ? options.pp : 4 * group;
  if (options.num_microbatches_with_partial_activation_checkpoints.has_value()) {
    // Passes that recompute all layers come every w + 1 steps, chunks every v * group: until all
    // pairs have been met.
    enough = options.virtual_pp == 1 ? 2 * options.pp
                                     : (2 * options.pp + options.virtual_pp * group + 4) * group;
  }
  if (num_microbatches <= enough + group) return static_cast<int>(num_microbatches);
  return static_cast<int>(enough + num_microbatches % group);
}

// Cosine, sine and its negative for each position, in a chunk of its own.
int64_t RotaryTableBytes(const JobSpec& spec, const ResolvedSpec& resolved) {
  if (spec.model.position_embedding_type != "rope") return 0;
  const auto rotated =
      static_cast<int64_t>(static_cast<double>(resolved.kv_channels) * spec.model.rotary_percent);
  return 3 * resolved.max_position_embeddings * (rotated / 2) * ParameterSize(spec.training);
}

// Muon's copies of the matrix that it orthogonalises (worker/optim/newton_schulz.cc); the largest
// matrix counts. With tensor parallelism every matrix's update waits for the others'.
int64_t OptimizerTemporaries(const JobSpec& spec, const ResolvedSpec& resolved,
                             const std::vector<ChunkLayers>& chunks) {
  if (!UsesMuon(spec.optimizer)) return 0;
  const ParallelSpec& p = spec.parallel;
  const int64_t tp = p.tensor_model_parallel_size;
  const bool shards = spec.optimizer.muon_tp_mode != "duplicated";
  const int64_t hidden = spec.model.hidden_size;
  const int64_t ffn = resolved.ffn_hidden_size / (shards ? tp : 1);
  const int64_t wide = spec.training.fp64 ? 8 : 4;
  const int64_t iterated = spec.optimizer.muon_matmul_precision == "medium" && wide == 4 ? 2 : wide;
  int64_t most = 0;
  for (const auto& [rows, cols] :
       {std::pair{ffn * (spec.model.swiglu ? 2 : 1), hidden}, std::pair{hidden, ffn}}) {
    const int64_t size = rows * cols, side = std::min(rows, cols);
    const bool tall = rows > cols;
    const int64_t held = size * wide * (tall ? 2 : 1);  // the direction, and its transpose
    const int64_t steps = 2 * size * iterated + 3 * side * side * iterated;
    const int64_t end = size * (tall ? 2 * wide : iterated + wide);
    most = std::max(most, held + std::max({steps, end, size * (wide + iterated)}));
  }
  if (tp == 1 || spec.optimizer.muon_tp_mode == "blockwise") return most;
  return most + wide * CountRankParameters(spec, resolved, chunks).dense_matrices;
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
  if (spec.optimizer.optimizer == "dist_muon") {
    plan.optimizer_bytes = LayerWiseBytes(spec, resolved, chunks, plan.optimizer_bytes, state);
  }
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
  for (int rank = 0; rank < split.pp; ++rank) {
    RankPlan& stage = plan.stages.emplace_back(PlanStage(spec, resolved, layers[rank]));
    std::vector<ChunkBytes> chunks;
    for (const ChunkLayers& chunk : layers[rank]) {
      chunks.push_back({ChunkActivations(spec, resolved, chunk),
                        ChunkActivations(spec, resolved, chunk, Recomputed::kAllLayers)});
    }
    ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, rank));
    // The optimizer's step comes when no activation is left.
    stage.activation_bytes =
        std::max(PeakBytes(schedule, chunks), OptimizerTemporaries(spec, resolved, layers[rank])) +
        RotaryTableBytes(spec, resolved) * split.virtual_pp;
  }
  return plan;
}

}  // namespace muster
