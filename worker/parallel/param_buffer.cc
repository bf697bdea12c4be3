#include "worker/parallel/param_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "common/base/check.h"

namespace muster {

ParamBuffer::ParamBuffer(const GradBuffer& grads) : grads_(grads) {
  at::NoGradGuard no_grad;
  const BucketLayout& layout = grads.layout();
  data_ = at::zeros({layout.numel},
                    at::TensorOptions(grads.data().device()).dtype(grads.key().param_dtype));
  for (size_t i = 0; i < grads.params().size(); ++i) {
    at::Tensor& param = grads.params()[i]->data;
    const at::Tensor view =
        data_.narrow(0, layout.params[i].begin, layout.params[i].size()).view(param.sizes());
    view.copy_(param);
    // The leaf stays: requires_grad, its hooks, and every copy of the handle.
    param.set_data(view);
  }
}

at::Tensor ParamBuffer::bucket(int index) const {
  const ElementRange& range = grads_.layout().buckets[index].range;
  return data_.narrow(0, range.begin, range.size());
}

std::vector<OwnedShard> ParamBuffer::Shards(int rank, int num_shards) const {
  std::vector<OwnedShard> shards;
  const BucketLayout& layout = grads_.layout();
  for (int bucket = 0; bucket < static_cast<int>(layout.buckets.size()); ++bucket) {
    for (const ParamShard& part : ShardOfBucket(layout, bucket, rank, num_shards)) {
      const ParameterPtr& p = grads_.params()[part.param];
      OwnedShard shard{.parameter = p, .in_param = part.in_param};
      if (shard.is_whole()) {
        shard.data = p->data.detach();
        shard.grad = p->main_grad;
      } else {
        shard.data = data_.narrow(0, part.in_buffer.begin, part.in_buffer.size());
        shard.grad = grads_.data().narrow(0, part.in_buffer.begin, part.in_buffer.size());
      }
      shards.push_back(std::move(shard));
    }
  }
  return shards;
}

at::Tensor ShardView(const at::Tensor& bucket, int rank, int num_shards) {
  MUSTER_CHECK_MSG(bucket.numel() % num_shards == 0, "a bucket must divide into equal shards");
  const int64_t size = bucket.numel() / num_shards;
  return bucket.narrow(0, rank * size, size);
}

}  // namespace muster
