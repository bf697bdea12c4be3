#include "common/schedule/state_memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/schedule/model_size.h"
#include "common/spec/data_sharding.h"

namespace muster {

int64_t ParameterBytes(const TrainingSpec& training) {
  if (training.fp64) return 8;
  return training.fp16 || training.bf16 ? 2 : 4;
}

namespace {

int64_t Share(int64_t elements, int64_t ranks) { return (elements + ranks - 1) / ranks; }

// Bytes of optimizer state for each parameter: matrices and others may differ (Muon).
struct StateSize {
  int64_t matrix = 0, other = 0;
};
StateSize OptimizerStateSize(const JobSpec& spec) {
  const int64_t moment = spec.training.fp64 ? 8 : 4;
  const int64_t main = ParameterBytes(spec.training) == 2 ? 4 : 0;
  const OptimizerSpec& o = spec.optimizer;
  const int64_t sgd = (o.sgd_momentum != 0 ? moment : 0) + main;
  if (o.optimizer == "sgd") return {sgd, sgd};
  const int64_t adam = 2 * moment + main;
  if (UsesMuon(o)) return {moment + main, o.muon_scalar_optimizer == "sgd" ? sgd : adam};
  return {adam, adam};
}

int64_t ExpertDataParallelSize(const JobSpec& spec) {
  const ParallelSpec& p = spec.parallel;
  const int64_t etp = p.expert_tensor_parallel_size.value_or(p.tensor_model_parallel_size);
  return std::max<int64_t>(1, spec.resources.world_size / (etp * p.expert_model_parallel_size *
                                                           p.pipeline_model_parallel_size));
}

// Ranks that share one copy of what is sharded.
struct ShardRanks {
  int64_t dense = 1, expert = 1;
};
ShardRanks ShardRanksOf(const JobSpec& spec, const ResolvedSpec& resolved) {
  const int64_t instances = spec.parallel.num_distributed_optimizer_instances;
  const int64_t dense = resolved.data_parallel_size * spec.parallel.context_parallel_size;
  return {std::max<int64_t>(1, dense / instances),
          std::max<int64_t>(1, ExpertDataParallelSize(spec) / instances)};
}

int64_t WidestFfn(const JobSpec& spec, const ResolvedSpec& resolved) {
  if (!spec.model.num_experts.has_value()) return resolved.ffn_hidden_size;
  return std::max(resolved.ffn_hidden_size, spec.model.moe_ffn_hidden_size.value_or(0));
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

// Blocks that a pool holds: by size in bytes, as many as are lent at once.
class Blocks {
 public:
  void Need(int64_t bytes, int64_t count) {
    if (bytes == 0) return;
    int64_t& most = most_[bytes];
    most = std::max(most, count);
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const auto& [bytes, count] : most_) sum += bytes * count;
    return sum;
  }

 private:
  std::map<int64_t, int64_t> most_;
};

// Of one unit's parameters, dense or its experts': values and gradients of all ranks' shards.
struct PieceBytes {
  int64_t values = 0, gradients = 0;
};

int64_t GatheredBytes(const JobSpec& spec, const ResolvedSpec& resolved,
                      const std::vector<ChunkLayers>& chunks, const DataSharding& sharding,
                      const ShardRanks& ranks, int64_t gradient_size) {
  const int64_t parameter_size = ParameterBytes(spec.training);
  const auto piece = [&](int64_t elements, int64_t num_ranks) {
    if (num_ranks == 1) return PieceBytes{};  // alone: whole already
    return PieceBytes{.values = sharding.parameters ? elements * parameter_size : 0,
                      .gradients = elements * gradient_size};
  };
  int64_t root = 0;
  Blocks blocks;
  std::map<int64_t, int64_t> kept_units;  // by size
  for (const ChunkLayers& chunk : chunks) {
    const ChunkParameters parts = CountChunkParameters(spec, resolved, chunk);
    const ParameterCount rest = parts.embedding + parts.final_norm + parts.output;
    const PieceBytes of_rest = piece(rest.total(), ranks.dense);
    root += of_rest.values + of_rest.gradients;
    for (const ParameterCount& layer : parts.layers) {
      for (const auto& [elements, num_ranks] :
           {std::pair{layer.dense_matrices + layer.dense_other, ranks.dense},
            std::pair{layer.expert_matrices + layer.expert_other, ranks.expert}}) {
        const PieceBytes bytes = piece(elements, num_ranks);
        // The one that computes and the next one; the gradients that are made and those that
        // travel. Blocks of one size serve both.
        const int64_t in_chunk = std::min<int64_t>(2, static_cast<int64_t>(parts.layers.size()));
        const int64_t values =
            sharding.keeps_units_gathered ? ++kept_units[bytes.values] : in_chunk;
        if (bytes.values == bytes.gradients) {
          // Where all units are kept, the one that is done has left its values' block.
          blocks.Need(bytes.values, values + (sharding.keeps_units_gathered ? 1 : in_chunk));
          continue;
        }
        blocks.Need(bytes.values, values);
        blocks.Need(bytes.gradients, in_chunk);
      }
    }
  }
  return root + blocks.total();
}

}  // namespace

StateMemory StageState(const JobSpec& spec, const ResolvedSpec& resolved,
                       const std::vector<ChunkLayers>& chunks) {
  const DataSharding sharding = DataShardingOf(spec.parallel);
  const ShardRanks ranks = ShardRanksOf(spec, resolved);
  const ParameterCount count = CountRankParameters(spec, resolved, chunks);
  const int64_t parameter_size = ParameterBytes(spec.training);
  const int64_t gradient_size =
      resolved.grads_in_fp32 ? std::max<int64_t>(4, parameter_size) : parameter_size;
  const StateSize state = OptimizerStateSize(spec);
  const auto held = [&](bool is_sharded) {
    return Share(count.dense_matrices + count.dense_other, is_sharded ? ranks.dense : 1) +
           Share(count.expert_matrices + count.expert_other, is_sharded ? ranks.expert : 1);
  };
  StateMemory memory;
  memory.parameters = held(sharding.parameters);
  memory.parameter_bytes = parameter_size * memory.parameters;
  memory.gradient_bytes = gradient_size * held(sharding.gradients);
  const int64_t instances =
      sharding.optimizer_over_instances ? spec.parallel.num_distributed_optimizer_instances : 1;
  const int64_t dense = sharding.optimizer ? ranks.dense * instances : 1;
  const int64_t expert = sharding.optimizer ? ranks.expert * instances : 1;
  const int64_t of_dense = state.matrix * Share(count.dense_matrices, dense) +
                           state.other * Share(count.dense_other, dense);
  const int64_t of_experts = state.matrix * Share(count.expert_matrices, expert) +
                             state.other * Share(count.expert_other, expert);
  memory.optimizer_bytes = of_dense + of_experts;
  if (spec.optimizer.optimizer == "dist_muon") {
    memory.optimizer_bytes = LayerWiseBytes(spec, resolved, chunks, of_dense, state) +
                             Share(of_experts, ExpertDataParallelSize(spec));
  }
  memory.updated_bytes =
      memory.optimizer_bytes +
      parameter_size * (Share(count.dense_matrices + count.dense_other, dense) +
                        Share(count.expert_matrices + count.expert_other, expert));
  if (sharding.by_unit) {
    memory.gathered_bytes = GatheredBytes(spec, resolved, chunks, sharding, ranks, gradient_size);
  }
  return memory;
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
  const int64_t ffn = WidestFfn(spec, resolved) / (shards ? tp : 1);
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

}  // namespace muster
