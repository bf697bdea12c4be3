#include "worker/parallel/bucket_layout.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace muster {
namespace {

constexpr int64_t kParamAlignment = 64;    // elements
constexpr int64_t kBucketAlignment = 128;  // elements: 256 bytes of bf16
constexpr int64_t kBusbwAlignment = int64_t{1} << 16;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

BucketLayout ComputeBucketLayout(const std::vector<BucketLayoutParam>& params,
                                 const BucketLayoutOptions& options) {
  int64_t bucket_multiple = 1;
  if (options.distributed_optimizer) {
    bucket_multiple = std::lcm(options.dp_shards, kBucketAlignment);
    if (options.pad_for_high_nccl_busbw)
      bucket_multiple = std::lcm(bucket_multiple, kBusbwAlignment);
  }

  BucketLayout layout;
  layout.params.resize(params.size());
  layout.bucket_of_param.resize(params.size());
  BucketSpan open;
  // Closes the open bucket, whose content ends at `content_end`; the next one starts where it ends.
  auto close = [&](int64_t content_end) {
    open.numel_unpadded = content_end - open.range.begin;
    open.range.end = RoundUp(content_end, bucket_multiple);
    layout.numel = open.range.end;
    layout.buckets.push_back(open);
    open = BucketSpan{.range = {layout.numel, layout.numel}};
  };

  int64_t end = 0;
  for (int i = static_cast<int>(params.size()) - 1; i >= 0; --i) {
    const bool alone = options.distributed_optimizer && params[i].shared_embedding;
    int64_t begin = options.distributed_optimizer ? RoundUp(end, kParamAlignment) : end;
    if (alone && !open.params.empty()) {
      close(
          begin);  // Megatron counts up to the aligned start here, not to the last parameter's end
      begin = open.range.begin;
    }
    end = begin + params[i].numel;
    layout.params[i] = {begin, end};
    layout.bucket_of_param[i] = static_cast<int>(layout.buckets.size());
    open.params.push_back(i);
    const bool full = options.bucket_size && end - open.range.begin >= *options.bucket_size;
    if (full || alone) {
      close(end);
      end = open.range.begin;
    }
  }
  if (!open.params.empty()) close(end);
  return layout;
}

std::vector<ParamShard> ShardOfBucket(const BucketLayout& layout, int bucket, int rank,
                                      int num_shards) {
  const BucketSpan& span = layout.buckets[bucket];
  MUSTER_CHECK_MSG(span.range.size() % num_shards == 0, "a bucket must divide into equal shards");
  const int64_t shard_size = span.range.size() / num_shards;
  const ElementRange shard{span.range.begin + rank * shard_size,
                           span.range.begin + (rank + 1) * shard_size};
  std::vector<ParamShard> parts;
  for (int param : span.params) {
    const ElementRange& p = layout.params[param];
    const ElementRange overlap{std::max(p.begin, shard.begin), std::min(p.end, shard.end)};
    if (overlap.size() <= 0) continue;
    auto relative_to = [&](int64_t origin) {
      return ElementRange{overlap.begin - origin, overlap.end - origin};
    };
    parts.push_back({.param = param,
                     .in_buffer = overlap,
                     .in_bucket = relative_to(span.range.begin),
                     .in_shard = relative_to(shard.begin),
                     .in_param = relative_to(p.begin)});
  }
  return parts;
}

bool BucketingIsDisabled(const BucketSizeRequest& request) {
  return request.chunk > 0 || request.overlap_param_gather_with_optimizer_step;
}

std::optional<int64_t> ResolveBucketSize(const BucketSizeRequest& request) {
  if (!request.overlap_grad_reduce || request.pp_rank > 0 || BucketingIsDisabled(request))
    return std::nullopt;
  if (request.num_buckets)
    return std::max<int64_t>(1, request.num_parameters / *request.num_buckets);
  if (request.bucket_size) return request.bucket_size;
  return std::max<int64_t>(40'000'000, 1'000'000 * request.dp_cp_size);
}

}  // namespace muster
