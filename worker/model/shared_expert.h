// The expert that every token passes (Megatron: SharedExpertMLP): a dense Mlp of its own width
// under the layer's tensor parallelism, optionally weighted by sigmoid(x w) of each token.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/layer_build.h"
#include "worker/model/mlp.h"

namespace muster {

class SharedExpert {
 public:
  // `name`: "decoder.layers.N.mlp.shared_experts".
  SharedExpert(LayerBuild& build, const std::string& name);

  // x (N, H), or this rank's rows of it -> the same shape.
  at::Tensor Forward(const at::Tensor& x) const;

 private:
  ParameterPtr gate_weight_;  // (1, H), or null
  Mlp mlp_;
};

}  // namespace muster
