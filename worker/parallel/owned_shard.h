// The part of a parameter that one rank's optimizer updates: all of it, or with the distributed
// optimizer the elements that fall into this rank's shard of a bucket (reference 6.6).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/bucket_layout.h"
#include "worker/parallel/parameter.h"

namespace muster {

struct OwnedShard {
  ParameterPtr parameter;
  // Elements of the (tensor-parallel shard of the) parameter in row-major order; [0, numel) when
  // all of it is owned.
  ElementRange in_param;
  // Views, so that writing to them changes the parameter (main_grad): 1-D of in_param.size(); of
  // the parameter's own shape when all of it is owned.
  at::Tensor data;
  at::Tensor grad;  // undefined without DDP

  bool is_whole() const { return in_param.begin == 0 && in_param.end == parameter->data.numel(); }
};

// Every parameter, whole.
std::vector<OwnedShard> WholeShards(const std::vector<ParameterPtr>& params);

}  // namespace muster
