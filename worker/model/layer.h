// One pre-LN transformer layer: x += dropout(attention(norm(x))); x += dropout(mlp(norm(x))).
// Both sums are left unfinished (PendingAdd), so that the following norm makes them in its own
// pass.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/attention.h"
#include "worker/model/mlp.h"
#include "worker/model/norm.h"

namespace muster {

class TransformerLayer {
 public:
  // `name`: "decoder.layers.N", N counted over the whole model.
  TransformerLayer(LayerBuild& build, const std::string& name,
                   std::shared_ptr<const RotaryTable> rotary);

  PendingAdd Forward(const PendingAdd& input, const TokenLayout& layout, const at::Tensor& mask,
                     bool training) const;

 private:
  double hidden_dropout_;
  at::Generator dropout_generator_;
  Norm input_layernorm_;
  SelfAttention self_attention_;
  Norm pre_mlp_layernorm_;
  Mlp mlp_;
};

}  // namespace muster
