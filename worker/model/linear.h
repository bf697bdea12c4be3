// y = x W^T (+ b), with Megatron's split over tp (reference 14.1; collectives follow with tp > 1).
// The weight's gradient goes straight into main_grad where there is one.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/layer_build.h"
#include "worker/parallel/parameter.h"

namespace muster {

// x (N, in), weight (out, in), bias (out) or null -> (N, out). `bias` is added in the product.
at::Tensor LinearOp(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias);

// The gradient of a parameter inside one of our backwards: into main_grad (then nothing for
// autograd), or handed back to autograd.
at::Tensor DeliverGrad(Parameter& parameter, const at::Tensor& grad);

// Rows of W are split over tp (outputs).
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(LayerBuild& build, const std::string& name, int64_t in, int64_t out,
                       bool bias, double init_std);
  at::Tensor Forward(const at::Tensor& x) const { return LinearOp(x, weight_, bias_); }
  // Without the bias, for a caller that fuses it into what follows.
  at::Tensor ForwardNoBias(const at::Tensor& x) const { return LinearOp(x, weight_, nullptr); }
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }  // null without

 private:
  ParameterPtr weight_, bias_;
};

// Columns of W are split over tp (inputs); the bias is replicated and added after the reduction,
// by the caller (bias()), which fuses it with dropout and the residual.
class RowParallelLinear {
 public:
  RowParallelLinear(LayerBuild& build, const std::string& name, int64_t in, int64_t out, bool bias,
                    double init_std);
  at::Tensor ForwardNoBias(const at::Tensor& x) const { return LinearOp(x, weight_, nullptr); }
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  ParameterPtr weight_, bias_;
};

}  // namespace muster
