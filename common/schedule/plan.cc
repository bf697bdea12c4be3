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
#include "common/schedule/state_memory.h"

namespace muster {
namespace {

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

// kSnapshotSlots of common/recovery/generations.h.
constexpr int64_t kSnapshotGenerations = 3;

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
  return 3 * resolved.max_position_embeddings * (rotated / 2) * ParameterBytes(spec.training);
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
    RankPlan& stage = plan.stages.emplace_back();
    const StateMemory state = StageState(spec, resolved, layers[rank]);
    stage.parameters = state.parameters;
    stage.parameter_bytes = state.parameter_bytes;
    stage.gradient_bytes = state.gradient_bytes;
    stage.optimizer_bytes = state.optimizer_bytes;
    stage.gathered_bytes = state.gathered_bytes;
    if (spec.recovery.snapshot_interval > 0)
      stage.snapshot_bytes = kSnapshotGenerations * state.updated_bytes;
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
  // Of whichever stage its rank is.
  int64_t most = 0;
  for (const RankPlan& stage : plan.stages) most = std::max(most, stage.snapshot_bytes);
  if (spec.resources.world_size > 1) {
    for (RankPlan& stage : plan.stages) stage.snapshot_copy_bytes = most;
  }
  return plan;
}

}  // namespace muster
