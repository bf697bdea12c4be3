// Where each parameter's gradient lies in a flat buffer, and how the buffer is cut into buckets
// (reference 6.2; Megatron: param_and_grad_buffer.py). Pure: numbers in, numbers out.
//
// Invariants: the parameters are laid out in reverse registration order, so bucket 0 is the end of
// the model, whose gradients come first in the backward pass; buckets are adjacent and cover
// [0, numel); with the distributed optimizer every bucket's size is a multiple of dp_shards.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace muster {

struct BucketLayoutParam {
  int64_t numel = 0;
  bool shared_embedding = false;  // the tied word embedding
};

struct BucketLayoutOptions {
  // Close a bucket when it holds at least so many elements; nullopt: one bucket.
  std::optional<int64_t> bucket_size;
  // Pads: parameters start at multiples of 64 elements, buckets end at a multiple of
  // lcm(dp_shards, 128), and a shared embedding gets a bucket of its own.
  bool distributed_optimizer = false;
  int64_t dp_shards = 1;                 // ranks that a bucket is cut over
  bool pad_for_high_nccl_busbw = false;  // lcm with 2^16 as well
};

struct ElementRange {
  int64_t begin = 0, end = 0;  // elements, end excluded
  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

struct BucketSpan {
  ElementRange range;          // in the buffer, padding included
  int64_t numel_unpadded = 0;  // from the bucket's begin to its last parameter's end
  std::vector<int> params;     // indices into the registration order, in buffer order
};

struct BucketLayout {
  std::vector<ElementRange> params;  // by registration index: where its gradient lies
  std::vector<int> bucket_of_param;  // by registration index
  std::vector<BucketSpan> buckets;
  int64_t numel = 0;  // padding included
};

// `params` in registration order.
BucketLayout ComputeBucketLayout(const std::vector<BucketLayoutParam>& params,
                                 const BucketLayoutOptions& options);

// Which of a bucket's elements shard `rank` of `num_shards` owns, and its part of each parameter
// (reference 6.6). The four coordinates of an overlap: in the buffer, in the bucket, in the shard,
// in the parameter.
struct ParamShard {
  int param = 0;  // registration index
  ElementRange in_buffer, in_bucket, in_shard, in_param;
};
// Needs bucket size % num_shards == 0 (checked). In buffer order; parameters without a part are
// left out.
std::vector<ParamShard> ShardOfBucket(const BucketLayout& layout, int bucket, int rank,
                                      int num_shards);

// The bucket size of 6.2 in elements; nullopt: one bucket a buffer.
struct BucketSizeRequest {
  bool overlap_grad_reduce = false;
  std::optional<int64_t> bucket_size, num_buckets;  // not both
  int64_t num_parameters = 0;                       // elements of this rank, all chunks
  int64_t dp_cp_size = 1;
  int chunk = 0;
  int pp_rank = 0;
  bool overlap_param_gather_with_optimizer_step = false;
};
std::optional<int64_t> ResolveBucketSize(const BucketSizeRequest& request);

// "Disable bucketing" of 6.2: all dense buffers form one bucket group, all expert ones another.
bool BucketingIsDisabled(const BucketSizeRequest& request);

}  // namespace muster
