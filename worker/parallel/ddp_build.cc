// How a DistributedDataParallel is put together: options checked, buffers laid out, buckets
// grouped.
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/grad_hooks.h"

namespace muster {
namespace {

int SizeOf(const Communicator* group) { return group == nullptr ? 1 : group->size(); }

absl::Status CheckOptions(const DdpOptions& options) {
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
  if (options.overlap_param_gather && !options.use_distributed_optimizer) {
    return absl::InvalidArgumentError(
        "parallel.overlap_param_gather=true needs parallel.use_distributed_optimizer=true: there "
        "is nothing to gather where every rank updates all parameters");
  }
  if (options.overlap_param_gather && !options.overlap_grad_reduce) {
    return absl::InvalidArgumentError(
        "parallel.overlap_param_gather=true needs parallel.overlap_grad_reduce=true");
  }
  return absl::OkStatus();
}

// Instances times the members of one are all members of `whole`.
absl::Status CheckInstances(const Communicator& whole, const Communicator* intra,
                            const Communicator* inter) {
  const int members = intra == nullptr ? whole.size() / SizeOf(inter) : intra->size();
  if (members * SizeOf(inter) == whole.size() && (intra != nullptr || SizeOf(inter) == 1))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("group ", whole.name(), " has ", whole.size(),
                                                 " members, but ", SizeOf(inter),
                                                 " instances of the distributed optimizer have ",
                                                 members, " each: the products must be equal"));
}

// OK, or which parameter cannot be taken; adds up their elements.
absl::StatusOr<int64_t> CheckParameters(const std::vector<std::vector<ParameterPtr>>& chunks) {
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
  return num_parameters;
}

}  // namespace

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
  RETURN_IF_ERROR(CheckOptions(options));
  if (options.use_distributed_optimizer) {
    RETURN_IF_ERROR(CheckInstances(*groups.dp_cp, groups.intra_dp_cp, groups.inter));
    RETURN_IF_ERROR(CheckInstances(*groups.expert_dp, groups.intra_expert_dp, groups.inter));
  }
  ASSIGN_OR_RETURN(const int64_t num_parameters, CheckParameters(chunks));
  auto ddp = std::unique_ptr<DistributedDataParallel>(new DistributedDataParallel(groups, options));
  for (auto& chunk : chunks) ddp->AddChunk(std::move(chunk), num_parameters);
  return ddp;
}

DistributedDataParallel::DistributedDataParallel(const DdpGroups& groups, const DdpOptions& options)
    : groups_(groups), options_(options) {
  if (options.use_distributed_optimizer && SizeOf(groups.inter) > 1) inter_.emplace(*groups.inter);
}

Communicator& DistributedDataParallel::ReductionGroup(bool is_expert) const {
  Communicator* const whole = is_expert ? groups_.expert_dp : groups_.dp_cp;
  Communicator* const intra = is_expert ? groups_.intra_expert_dp : groups_.intra_dp_cp;
  return options_.use_distributed_optimizer && intra != nullptr ? *intra : *whole;
}

void DistributedDataParallel::AddChunk(std::vector<ParameterPtr> params, int64_t num_parameters) {
  const BucketSizeRequest size_request{.overlap_grad_reduce = options_.overlap_grad_reduce,
                                       .bucket_size = options_.bucket_size,
                                       .num_buckets = options_.num_buckets,
                                       .num_parameters = num_parameters,
                                       .dp_cp_size = groups_.dp_cp->size(),
                                       .chunk = num_chunks(),
                                       .pp_rank = groups_.pp_rank};
  Chunk chunk{.params = std::move(params)};
  AddBuffers(chunk, ResolveBucketSize(size_request));

  std::vector<BucketRef> buckets[2];  // dense, expert
  for (size_t b = 0; b < chunk.buffers.size(); ++b)
    for (const GradBucket& bucket : chunk.buffers[b]->buckets())
      buckets[chunk.buffers[b]->key().is_expert].push_back({b, bucket.index});
  for (bool is_expert : {false, true}) {
    if (BucketingIsDisabled(size_request)) {
      if (!buckets[is_expert].empty()) AddGroup(chunk, buckets[is_expert], is_expert);
      continue;
    }
    for (const BucketRef& bucket : buckets[is_expert]) AddGroup(chunk, {bucket}, is_expert);
  }
  ChainGathers(chunk);
  for (const ParameterPtr& p : chunk.params) {
    p->sink = this;
    InstallGradHook(p);
  }
  chunks_.push_back(std::move(chunk));
}

void DistributedDataParallel::AddBuffers(Chunk& chunk, std::optional<int64_t> bucket_size) {
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
  for (const GradBufferKey& key : order) {
    const BucketLayoutOptions layout{
        .bucket_size = bucket_size,
        .distributed_optimizer = options_.use_distributed_optimizer,
        .dp_shards = ReductionGroup(key.is_expert).size(),
        .pad_for_high_nccl_busbw = options_.pad_buckets_for_high_nccl_busbw};
    chunk.buffers.push_back(std::make_unique<GradBuffer>(key, by_key[key], layout));
    if (options_.use_distributed_optimizer)
      chunk.param_buffers.push_back(std::make_unique<ParamBuffer>(*chunk.buffers.back()));
  }
}

void DistributedDataParallel::AddGroup(Chunk& chunk, const std::vector<BucketRef>& buckets,
                                       bool is_expert) {
  const GradScaling scaling =
      ComputeGradScaling(options_, is_expert, groups_.dp_cp->size(), groups_.expert_dp->size());
  std::vector<const GradBucket*> grads;
  for (const BucketRef& ref : buckets)
    grads.push_back(&chunk.buffers[ref.buffer]->buckets()[ref.bucket]);
  chunk.groups.push_back(std::make_unique<BucketGroup>(
      std::move(grads), ReductionGroup(is_expert),
      BucketGroup::Options{.overlap_grad_reduce = options_.overlap_grad_reduce,
                           .check_norms = options_.check_for_nan_in_grad,
                           .scale_before = scaling.before,
                           .scale_after = scaling.after,
                           .scatter = options_.use_distributed_optimizer,
                           .inter = inter_ ? &*inter_ : nullptr}));
  GroupsOfParam groups{.grads = chunk.groups.back().get()};
  if (options_.use_distributed_optimizer) {
    std::vector<at::Tensor> values;
    for (const BucketRef& ref : buckets)
      values.push_back(chunk.param_buffers[ref.buffer]->bucket(ref.bucket));
    chunk.gathers.push_back(
        std::make_unique<ParamGather>(std::move(values), ReductionGroup(is_expert)));
    groups.gather = chunk.gathers.back().get();
  }
  for (const GradBucket* bucket : groups.grads->buckets())
    for (const ParameterPtr& p : bucket->params) groups_of_[p.get()] = groups;
}

// Bucket 0 is the end of the model, so the one that the forward pass needs next comes before.
void DistributedDataParallel::ChainGathers(Chunk& chunk) {
  for (size_t i = 1; i < chunk.gathers.size(); ++i) {
    auto is_expert = [&](size_t group) {
      return !chunk.groups[group]->buckets()[0]->params[0]->allreduce;
    };
    if (is_expert(i) == is_expert(i - 1)) chunk.gathers[i]->set_next(chunk.gathers[i - 1].get());
  }
}

}  // namespace muster
