// LayerNorm and RMSNorm, alone or fused with the residual addition in front of them:
//   x = residual + dropout(branch + bias);  y = norm(x)
// A layer leaves its result as such an unfinished sum (PendingAdd), and the next norm finishes it
// in the same pass. Internals in fp32 (fp64 for fp64 tensors), as Megatron's.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/layer_build.h"
#include "worker/parallel/parameter.h"

namespace muster {

// residual + dropout(branch + bias), rows (N, H). branch undefined: the value is residual.
struct PendingAdd {
  at::Tensor residual;
  at::Tensor branch;
  ParameterPtr bias;     // (H) or null
  at::Tensor drop_mask;  // (N, H), 0 or 1/(1-p); undefined: no dropout
};

// Draws a mask of `like`'s shape; undefined when p is 0.
at::Tensor MakeDropMask(const at::Tensor& like, double p, const at::Generator& generator);

// The finished sum (N, H).
at::Tensor FinishAdd(const PendingAdd& pending);

class Norm {
 public:
  // LayerNorm has weight and bias, RMSNorm a weight.
  Norm(LayerBuild& build, const std::string& name, int64_t width);

  struct Result {
    at::Tensor x;  // the finished sum, for the residual stream
    at::Tensor y;  // its norm
  };
  Result Forward(const PendingAdd& pending) const;
  // Norm over the last dim (`width`) of x (..., width).
  at::Tensor Forward(const at::Tensor& x) const;

  // Flags the parameters as query/key norms (summed over tp, weight decay on request).
  void MarkQkLayernorm();

 private:
  Normalization kind_;
  double epsilon_;
  ParameterPtr weight_, bias_;
};

}  // namespace muster
