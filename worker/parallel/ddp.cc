#include "worker/parallel/ddp.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/grad_hooks.h"

namespace muster {

DdpGroups DdpGroups::Of(const ParallelContext& parallel) {
  return {.dp_cp = &parallel.Group("dp_cp"),
          .expert_dp = &parallel.Group("expert_dp"),
          .intra_dp_cp = &parallel.Group("intra_dp_cp"),
          .intra_expert_dp = &parallel.Group("intra_expert_dp"),
          .inter = &parallel.Group("inter_expert_dp"),
          .pp_rank = parallel.coordinates().pp};
}

GradScaling ComputeGradScaling(const DdpOptions& options, bool is_expert, int dp_cp_size,
                               int expert_dp_size) {
  if (options.calculate_per_token_loss) return {};
  // Experts too are divided by all of dp_cp: their tokens come from all of it.
  if (!options.average_in_collective) return {.before = 1.0 / dp_cp_size};
  if (!is_expert) return {.after = 1.0 / dp_cp_size};
  return {.before = static_cast<double>(expert_dp_size) / dp_cp_size,
          .after = 1.0 / expert_dp_size};
}

absl::StatusOr<std::unique_ptr<DistributedDataParallel>> DistributedDataParallel::Create(
    std::vector<std::vector<ParameterPtr>> chunks, const DdpGroups& groups,
    const DdpOptions& options) {
  if (options.use_distributed_optimizer) {
    return absl::UnimplementedError(
        "parallel.use_distributed_optimizer=true: gradients cannot be reduce-scattered yet; set it "
        "to false");
  }
  if (options.average_in_collective && options.calculate_per_token_loss) {
    return absl::InvalidArgumentError(
        "parallel.ddp_average_in_collective=true excludes training.calculate_per_token_loss=true: "
        "sums over tokens are divided by the token count, not by the number of ranks");
  }
  if (options.bucket_size && options.num_buckets) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.ddp_bucket_size=", *options.bucket_size, " and parallel.ddp_num_buckets=",
        *options.num_buckets, " exclude each other: set one of them"));
  }
  std::set<const Parameter*> seen;
  int64_t num_parameters = 0;
  for (const auto& chunk : chunks) {
    for (const ParameterPtr& p : chunk) {
      if (!seen.insert(p.get()).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter ", p->name, " is listed twice: a model lists each once"));
      }
      if (p->sink != nullptr) {
        return absl::FailedPreconditionError(absl::StrCat(
            "parameter ", p->name, " belongs to another DistributedDataParallel still"));
      }
      num_parameters += p->data.numel();
    }
  }
  auto ddp = std::unique_ptr<DistributedDataParallel>(new DistributedDataParallel(groups, options));
  for (auto& chunk : chunks) ddp->AddChunk(std::move(chunk), num_parameters);
  return ddp;
}

void DistributedDataParallel::AddChunk(std::vector<ParameterPtr> params, int64_t num_parameters) {
  const BucketSizeRequest size_request{.overlap_grad_reduce = options_.overlap_grad_reduce,
                                       .bucket_size = options_.bucket_size,
                                       .num_buckets = options_.num_buckets,
                                       .num_parameters = num_parameters,
                                       .dp_cp_size = groups_.dp_cp->size(),
                                       .chunk = num_chunks(),
                                       .pp_rank = groups_.pp_rank};
  const BucketLayoutOptions layout{.bucket_size = ResolveBucketSize(size_request)};
  Chunk chunk{.params = std::move(params)};

  // Buffers in order of their first parameter, so that all ranks reduce in the same order.
  std::vector<GradBufferKey> order;
  std::map<GradBufferKey, std::vector<ParameterPtr>> by_key;
  for (const ParameterPtr& p : chunk.params) {
    const at::ScalarType dtype = p->data.scalar_type();
    const GradBufferKey key{.param_dtype = dtype,
                            .grad_dtype = options_.grad_reduce_in_fp32 ? at::kFloat : dtype,
                            .is_expert = !p->allreduce};
    if (!by_key.count(key)) order.push_back(key);
    by_key[key].push_back(p);
  }
  for (const GradBufferKey& key : order)
    chunk.buffers.push_back(std::make_unique<GradBuffer>(key, by_key[key], layout));

  auto add_group = [&](std::vector<const GradBucket*> buckets, bool is_expert) {
    Communicator& comm = is_expert ? *groups_.expert_dp : *groups_.dp_cp;
    const GradScaling scaling =
        ComputeGradScaling(options_, is_expert, groups_.dp_cp->size(), groups_.expert_dp->size());
    chunk.groups.push_back(std::make_unique<BucketGroup>(
        std::move(buckets), comm,
        BucketGroup::Options{.overlap_grad_reduce = options_.overlap_grad_reduce,
                             .check_norms = options_.check_for_nan_in_grad,
                             .scale_before = scaling.before,
                             .scale_after = scaling.after}));
    for (const GradBucket* bucket : chunk.groups.back()->buckets())
      for (const ParameterPtr& p : bucket->params) group_of_[p.get()] = chunk.groups.back().get();
  };
  if (BucketingIsDisabled(size_request)) {
    for (bool is_expert : {false, true}) {
      std::vector<const GradBucket*> all;
      for (const auto& buffer : chunk.buffers)
        if (buffer->key().is_expert == is_expert)
          for (const GradBucket& bucket : buffer->buckets()) all.push_back(&bucket);
      if (!all.empty()) add_group(std::move(all), is_expert);
    }
  } else {
    for (const auto& buffer : chunk.buffers)
      for (const GradBucket& bucket : buffer->buckets())
        add_group({&bucket}, buffer->key().is_expert);
  }
  for (const ParameterPtr& p : chunk.params) {
    p->sink = this;
    InstallGradHook(p);
  }
  chunks_.push_back(std::move(chunk));
}

DistributedDataParallel::~DistributedDataParallel() {
  for (const Chunk& chunk : chunks_) {
    for (const ParameterPtr& p : chunk.params) {
      RemoveGradHook(*p);
      p->sink = nullptr;
    }
  }
}

void DistributedDataParallel::GradReady(Parameter& parameter) {
  const auto found = group_of_.find(&parameter);
  MUSTER_CHECK(found != group_of_.end());
  // Called inside the backward pass, where a Status cannot travel.
  absl::Status status = found->second->GradReady(parameter);
  if (!status.ok()) throw CollectiveError(std::move(status));
}

absl::Status DistributedDataParallel::StartGradSync(int chunk) {
  for (const auto& group : chunks_[chunk].groups) RETURN_IF_ERROR(group->StartGradSync());
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::FinishGradSync(int chunk) {
  for (const auto& group : chunks_[chunk].groups) RETURN_IF_ERROR(group->FinishGradSync());
  return absl::OkStatus();
}

void DistributedDataParallel::ZeroGradBuffer() {
  for (const Chunk& chunk : chunks_) {
    for (const auto& buffer : chunk.buffers) buffer->ZeroGrads();
    for (const auto& group : chunk.groups) group->Reset();
  }
}

void DistributedDataParallel::ScaleGradients(double factor) {
  if (factor == 1.0) return;
  at::NoGradGuard no_grad;
  for (const Chunk& chunk : chunks_) {
    for (const auto& buffer : chunk.buffers) {
      at::Tensor data = buffer->data();
      data.mul_(factor);
    }
    for (const ParameterPtr& p : chunk.params) p->main_grad_squares.reset();
  }
}

absl::Status DistributedDataParallel::BroadcastParams() {
  for (const Chunk& chunk : chunks_) {
    for (const ParameterPtr& p : chunk.params) {
      Communicator& comm = p->allreduce ? *groups_.dp_cp : *groups_.expert_dp;
      RETURN_IF_ERROR(comm.Broadcast(p->data.detach(), 0)->Wait());
    }
  }
  return absl::OkStatus();
}

std::vector<OwnedShard> DistributedDataParallel::shards() const {
  std::vector<OwnedShard> shards;
  for (const Chunk& chunk : chunks_) {
    std::vector<OwnedShard> more = WholeShards(chunk.params);
    shards.insert(shards.end(), more.begin(), more.end());
  }
  return shards;
}

absl::Status DistributedDataParallel::StartParamSync(int) { return absl::OkStatus(); }
absl::Status DistributedDataParallel::SyncParams() { return absl::OkStatus(); }
void DistributedDataParallel::EnableForwardPreHook() { forward_pre_hook_enabled_ = true; }
absl::Status DistributedDataParallel::DisableForwardPreHook(bool) {
  forward_pre_hook_enabled_ = false;
  return absl::OkStatus();
}

std::vector<const GradBuffer*> DistributedDataParallel::buffers(int chunk) const {
  std::vector<const GradBuffer*> buffers;
  for (const auto& buffer : chunks_[chunk].buffers) buffers.push_back(buffer.get());
  return buffers;
}

std::vector<ChunkBucketNorm> DistributedDataParallel::bucket_norms() const {
  std::vector<ChunkBucketNorm> norms;
  std::vector<at::Tensor> pending;
  for (int c = 0; c < num_chunks(); ++c) {
    for (const auto& group : chunks_[c].groups) {
      const bool is_expert = !group->buckets()[0]->params[0]->allreduce;
      for (const PendingNorm& norm : group->norms()) {
        norms.push_back({c, is_expert, {norm.bucket, norm.first_param}});
        pending.push_back(norm.norm);
      }
    }
  }
  if (pending.empty()) return norms;
  const at::Tensor read = at::stack(pending).cpu();  // one look at the device for all of them
  for (size_t i = 0; i < norms.size(); ++i) {
    norms[i].bucket.norm = read.const_data_ptr<double>()[i];
  }
  return norms;
}

absl::Status DistributedDataParallel::CheckBucketNorms() const {
  for (const ChunkBucketNorm& entry : bucket_norms()) {
    if (std::isfinite(entry.bucket.norm)) continue;
    return absl::InternalError(absl::StrCat(
        "found ", std::isnan(entry.bucket.norm) ? "NaN" : "Inf",
        " in the local gradient norm of bucket ", entry.bucket.bucket, " of chunk ", entry.chunk,
        ", which begins with ", entry.bucket.first_param, ", before the data-parallel reduction"));
  }
  return absl::OkStatus();
}

void DistributedDataParallel::SetLastMicrobatch(bool value) {
  for (const Chunk& chunk : chunks_)
    for (const auto& group : chunk.groups) group->set_is_last_microbatch(value);
}

}  // namespace muster
