// How a FullyShardedDataParallel is put together: parameters sorted into units and pieces.
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/fsdp.h"
#include "worker/parallel/grad_hooks.h"

namespace muster {
namespace {

absl::Status CheckParameters(const std::vector<std::vector<ParameterPtr>>& chunks) {
  std::set<const Parameter*> seen;
  for (const auto& chunk : chunks) {
    for (const ParameterPtr& p : chunk) {
      if (!seen.insert(p.get()).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter ", p->name, " is listed twice: a model lists each once"));
      }
      if (p->sink != nullptr) {
        return absl::FailedPreconditionError(
            absl::StrCat("parameter ", p->name, " belongs to another data-parallel wrapper still"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Broadcast(const std::vector<std::vector<ParameterPtr>>& chunks,
                       const DdpGroups& groups) {
  std::vector<WorkPtr> works;
  for (const auto& chunk : chunks) {
    for (const ParameterPtr& p : chunk) {
      Communicator& comm = p->allreduce ? *groups.dp_cp : *groups.expert_dp;
      works.push_back(comm.Broadcast(p->data.detach(), 0));
    }
  }
  absl::Status first_error;
  for (const WorkPtr& work : works) first_error.Update(work->Wait());
  return Annotate(first_error, "broadcasting parameters");
}

// What is no layer, in the units of torch FSDP2: embedding, output layer, the rest.
int RootOf(const Parameter& parameter) {
  if (absl::StartsWith(parameter.name, "embedding.")) return 0;
  return absl::StartsWith(parameter.name, "output_layer.") ? 1 : 2;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullyShardedDataParallel::Create(
    std::vector<std::vector<ParameterPtr>> chunks, const DdpGroups& groups,
    const FsdpOptions& options) {
  if (options.average_in_collective && options.calculate_per_token_loss) {
    return absl::InvalidArgumentError(
        "parallel.ddp_average_in_collective=true excludes training.calculate_per_token_loss=true: "
        "sums over tokens are divided by the token count, not by the number of ranks");
  }
  RETURN_IF_ERROR(CheckParameters(chunks));
  if (options.broadcast_params) RETURN_IF_ERROR(Broadcast(chunks, groups));
  at::Device device = at::kCPU;
  for (const auto& chunk : chunks)
    if (!chunk.empty()) device = chunk[0]->data.device();
  auto fsdp = std::unique_ptr<FullyShardedDataParallel>(
      new FullyShardedDataParallel(device, groups, options));
  for (auto& chunk : chunks) fsdp->AddChunk(std::move(chunk));
  return fsdp;
}

FullyShardedDataParallel::FullyShardedDataParallel(at::Device device, const DdpGroups& groups,
                                                   const FsdpOptions& options)
    : groups_(groups), options_(options), pool_(device) {}

Communicator& FullyShardedDataParallel::ShardGroup(bool is_expert) const {
  Communicator* const whole = is_expert ? groups_.expert_dp : groups_.dp_cp;
  Communicator* const intra = is_expert ? groups_.intra_expert_dp : groups_.intra_dp_cp;
  return intra == nullptr ? *whole : *intra;
}

void FullyShardedDataParallel::AddChunk(std::vector<ParameterPtr> params) {
  chunks_.push_back(std::make_unique<Chunk>());
  Chunk& chunk = *chunks_.back();
  chunk.params = std::move(params);
  std::map<int, std::vector<ParameterPtr>> roots, units;
  for (const ParameterPtr& p : chunk.params) {
    if (p->unit >= 0) {
      units[p->unit].push_back(p);
    } else {
      roots[options_.root_by_microbatch ? RootOf(*p) : 0].push_back(p);
    }
  }
  for (const auto& [number, members] : roots) chunk.roots.push_back(MakeUnit(chunk, -1, members));
  const int num_units = units.empty() ? 0 : units.rbegin()->first + 1;
  for (int number = 0; number < num_units; ++number)
    chunk.units.push_back(MakeUnit(chunk, number, units[number]));
  chunk.hooks = std::make_unique<ChunkHooks>(*this, chunk);
  for (const ParameterPtr& p : chunk.params) {
    p->sink = this;
    p->gatherer = this;
    InstallGradHook(p);
  }
}

std::unique_ptr<FullyShardedDataParallel::Unit> FullyShardedDataParallel::MakeUnit(
    Chunk& chunk, int number, const std::vector<ParameterPtr>& params) {
  auto unit = std::make_unique<Unit>();
  unit->chunk = &chunk;
  unit->number = number;
  // Kinds in order of their first parameter: the same order of collectives on all ranks.
  std::vector<std::pair<at::ScalarType, bool>> order;
  std::map<std::pair<at::ScalarType, bool>, std::vector<ParameterPtr>> by_kind;
  for (const ParameterPtr& p : params) {
    const std::pair<at::ScalarType, bool> kind = {p->data.scalar_type(), !p->allreduce};
    if (by_kind.count(kind) == 0) order.push_back(kind);
    by_kind[kind].push_back(p);
  }
  for (const auto& kind : order) {
    const auto [dtype, is_expert] = kind;
    Communicator& group = ShardGroup(is_expert);
    const bool has_instances = groups_.inter != nullptr && groups_.inter->size() > 1;
    const GradScaling scaling =
        ComputeGradScaling({.average_in_collective = options_.average_in_collective,
                            .calculate_per_token_loss = options_.calculate_per_token_loss},
                           is_expert, groups_.dp_cp->size(), groups_.expert_dp->size());
    const ShardedPiece::Options piece{
        .shard_values = options_.shard_parameters,
        .grad_dtype = options_.grad_reduce_in_fp32 ? at::kFloat : dtype,
        .scale_before = scaling.before,
        .scale_after = scaling.after,
        .check_norms = options_.check_for_nan_in_grad,
        .outer = has_instances ? groups_.inter : nullptr,
        .shard_over_outer = has_instances && options_.shard_optimizer_over_instances};
    const std::vector<ParameterPtr>& members = by_kind[kind];
    std::vector<BucketLayoutParam> sizes;
    for (const ParameterPtr& p : members)
      sizes.push_back({.numel = p->data.numel(), .shared_embedding = p->shared_embedding});
    // One bucket, but for a tied embedding: that has one of its own.
    const BucketLayout layout = ComputeBucketLayout(
        sizes, {.distributed_optimizer = true,
                .dp_shards = group.size() * (piece.shard_over_outer ? groups_.inter->size() : 1)});
    for (int bucket = 0; bucket < static_cast<int>(layout.buckets.size()); ++bucket) {
      unit->pieces.push_back(
          std::make_unique<ShardedPiece>(members, layout, bucket, group, pool_, piece));
      for (const ParameterPtr& p : unit->pieces.back()->params())
        place_of_[p.get()] = {unit.get(), unit->pieces.back().get()};
    }
  }
  return unit;
}

}  // namespace muster
