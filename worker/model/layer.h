// One pre-LN transformer layer: x += dropout(attention(norm(x))); x += dropout(mlp(norm(x))), where
// mlp is a mixture of experts in the layers that have them (moe_layer_freq). Both sums are left
// unfinished (PendingAdd), so that the following norm makes them in its own pass.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "worker/model/attention.h"
#include "worker/model/mlp.h"
#include "worker/model/moe_layer.h"
#include "worker/model/norm.h"

namespace muster {

class TransformerLayer {
 public:
  // Layer `number` of the whole model; its parameters are "decoder.layers.NUMBER....".
  TransformerLayer(LayerBuild& build, int64_t number, std::shared_ptr<const RotaryTable> rotary);

  PendingAdd Forward(const PendingAdd& input, const TokenLayout& layout, const at::Tensor& mask,
                     bool training) const;

 private:
  double hidden_dropout_;
  at::Generator dropout_generator_;
  Norm input_layernorm_;
  SelfAttention self_attention_;
  Norm pre_mlp_layernorm_;
  // One of them.
  std::optional<Mlp> mlp_;
  std::optional<MoeLayer> moe_;
};

}  // namespace muster
