// The feed-forward block: linear_fc1, GELU or SwiGLU, linear_fc2.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/linear.h"

namespace muster {

class Mlp {
 public:
  // `name`: "decoder.layers.N.mlp". With SwiGLU fc1 has twice the rows: gate, then up.
  Mlp(LayerBuild& build, const std::string& name, int64_t ffn_hidden_size);

  // x (N, H) normed, or this rank's rows of it -> the same shape, without fc2's bias (bias()).
  at::Tensor Forward(const at::Tensor& x) const;
  const ParameterPtr& bias() const { return linear_fc2_.bias(); }

 private:
  bool swiglu_;
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
};

}  // namespace muster
