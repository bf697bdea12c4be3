// One flat tensor that holds the values of all parameters of one kind, laid out as their gradients
// are (grad_buffer.h): the distributed optimizer gathers whole buckets in place, without a copy
// (reference 6.5, 6.6).
//
// The parameters' tensors stay the same leaves, with their hooks; only their memory moves, and they
// keep this memory alive when the buffer object is gone. Thread-safety: one thread (the rank's).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/grad_buffer.h"
#include "worker/parallel/owned_shard.h"

namespace muster {

class ParamBuffer {
 public:
  // Moves the values of the parameters of `grads`, which must outlive this.
  explicit ParamBuffer(const GradBuffer& grads);
  ParamBuffer(const ParamBuffer&) = delete;
  ParamBuffer& operator=(const ParamBuffer&) = delete;

  const at::Tensor& data() const { return data_; }  // (layout.numel), the parameters' dtype
  at::Tensor bucket(int index) const;               // a view, padding included

  // What of the parameters lies in shard `rank` of `num_shards` of their buckets, in buffer order.
  std::vector<OwnedShard> Shards(int rank, int num_shards) const;

 private:
  const GradBuffer& grads_;
  at::Tensor data_;
};

// Part `rank` of `num_shards` equal ones, a view.
at::Tensor ShardView(const at::Tensor& bucket, int rank, int num_shards);

}  // namespace muster
