// The parameters' side of DistributedDataParallel: what is updated here, and how the rest of each
// parameter comes back from the ranks that updated it.
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/ddp.h"

namespace muster {

std::vector<OwnedShard> DistributedDataParallel::shards() const {
  std::vector<OwnedShard> shards;
  for (const Chunk& chunk : chunks_) {
    if (!options_.use_distributed_optimizer) {
      std::vector<OwnedShard> more = WholeShards(chunk.params);
      shards.insert(shards.end(), more.begin(), more.end());
      continue;
    }
    std::unordered_map<const Parameter*, OwnedShard> owned;  // a rank has one part of each at most
    for (size_t b = 0; b < chunk.buffers.size(); ++b) {
      const Communicator& group = ReductionGroup(chunk.buffers[b]->key().is_expert);
      for (OwnedShard& shard : chunk.param_buffers[b]->Shards(group.rank(), group.size()))
        owned.emplace(shard.parameter.get(), std::move(shard));
    }
    for (const ParameterPtr& p : chunk.params)
      if (const auto found = owned.find(p.get()); found != owned.end())
        shards.push_back(found->second);
  }
  return shards;
}

absl::Status DistributedDataParallel::BroadcastParams() {
  std::vector<WorkPtr> works;
  for (const Chunk& chunk : chunks_) {
    for (const ParameterPtr& p : chunk.params) {
      Communicator& comm = p->allreduce ? *groups_.dp_cp : *groups_.expert_dp;
      works.push_back(comm.Broadcast(p->data.detach(), 0));
    }
  }
  absl::Status first_error;
  for (const WorkPtr& work : works) first_error.Update(work->Wait());
  return first_error;
}

absl::Status DistributedDataParallel::StartParamSync(int chunk) {
  if (!forward_pre_hook_enabled_) return absl::OkStatus();
  for (const auto& gather : chunks_[chunk].gathers) RETURN_IF_ERROR(gather->Start());
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::SyncParams() {
  absl::Status first_error;
  for (const Chunk& chunk : chunks_)
    for (const auto& gather : chunk.gathers) first_error.Update(gather->StartForced());
  for (const Chunk& chunk : chunks_)
    for (const auto& gather : chunk.gathers) first_error.Update(gather->Wait());
  return first_error;
}

void DistributedDataParallel::EnableForwardPreHook() {
  if (!options_.overlap_param_gather) return;
  MUSTER_CHECK_MSG(!forward_pre_hook_enabled_, "the forward pre-hooks are on already");
  forward_pre_hook_enabled_ = true;
  for (const Chunk& chunk : chunks_)
    for (const ParameterPtr& p : chunk.params) p->gatherer = this;
}

absl::Status DistributedDataParallel::DisableForwardPreHook(bool param_sync) {
  forward_pre_hook_enabled_ = false;
  for (const Chunk& chunk : chunks_)
    for (const ParameterPtr& p : chunk.params) p->gatherer = nullptr;
  if (param_sync) return SyncParams();
  absl::Status first_error;
  for (const Chunk& chunk : chunks_)
    for (const auto& gather : chunk.gathers) first_error.Update(gather->Wait());
  return first_error;
}

void DistributedDataParallel::ParamNeeded(Parameter& parameter) {
  const auto found = groups_of_.find(&parameter);
  MUSTER_CHECK(found != groups_of_.end());
  // Called inside forward functions, recomputed ones in the backward pass among them, where a
  // Status cannot travel.
  absl::Status status = found->second.gather->Await(/*skip_next=*/options_.align_param_gather);
  if (!status.ok()) throw CollectiveError(std::move(status));
}

}  // namespace muster
