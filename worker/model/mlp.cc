#include "worker/model/mlp.h"

#include "worker/model/activation.h"

namespace muster {

Mlp::Mlp(LayerBuild& build, const std::string& name, int64_t ffn_hidden_size)
    : swiglu_(build.config.swiglu),
      linear_fc1_(build, name + ".linear_fc1",
                  {.in = build.config.hidden_size,
                   .out = ffn_hidden_size * (build.config.swiglu ? 2 : 1),
                   .bias = build.config.add_bias_linear,
                   .init_std = build.config.init_method_std,
                   // A shard holds its part of the gate, then its part of up: as the activation
                   // wants it.
                   .stride = build.config.swiglu ? 2 : 1}),
      linear_fc2_(build, name + ".linear_fc2", ffn_hidden_size, build.config.hidden_size,
                  build.config.add_bias_linear, OutputInitStd(build.config)) {}

at::Tensor Mlp::Forward(const at::Tensor& x) const {
  const at::Tensor u = linear_fc1_.ForwardNoBias(x);
  const ParameterPtr& bias = linear_fc1_.bias();
  return linear_fc2_.ForwardNoBias(swiglu_ ? BiasSwigluOp(u, bias) : BiasGeluOp(u, bias));
}

}  // namespace muster
