// y = x W^T (+ b), with Megatron's split over tp (reference 14.1). The weight's gradient goes
// straight into main_grad where there is one.
//
//   tp alone    column: x whole, y own columns;    backward: all-reduce of dx beside the product dW
//               row:    x own columns, y summed by an all-reduce
//   with sequence parallelism
//               column: x own rows, gathered;      backward: x gathered again beside the product
//               dx,
//                                                  dx reduce-scattered beside the product dW
//               row:    y reduce-scattered to own rows; backward: dy gathered
//
// The gathered x is not kept for the backward: it would be tp times the activations.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/layer_build.h"
#include "worker/ops/autograd_op.h"
#include "worker/parallel/parameter.h"

namespace muster {

// x (N, in), weight (out, in), bias (out) or null -> (N, out). `bias` is added in the product.
at::Tensor LinearOp(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias);

// x (N, in), or this rank's rows of it with sequence parallelism; weight (out / tp, in) ->
// (N, out / tp).
at::Tensor ColumnParallelOp(const at::Tensor& x, const ParameterPtr& weight,
                            const ParameterPtr& bias, const TensorParallel& tp);
// x (N, in / tp), weight (out, in / tp) -> the sum over tp (N, out), or this rank's rows of it.
at::Tensor RowParallelOp(const at::Tensor& x, const ParameterPtr& weight, const TensorParallel& tp);

// The backward of the product in ColumnParallelOp, given dy (N, out / tp) and x as it came in.
struct LinearGrads {
  at::Tensor dx;       // like x; undefined when not wanted
  at::Tensor dweight;  // undefined when not wanted, or when it went into main_grad
};
struct WantedGrads {
  bool dx = false, dweight = false;
};
LinearGrads ColumnParallelBackward(const at::Tensor& dy, const at::Tensor& x, Parameter& weight,
                                   WantedGrads wanted, const TensorParallel& tp);

// The gradient of a parameter inside one of our backwards: into main_grad (then nothing for
// autograd), or handed back to autograd.
at::Tensor DeliverGrad(Parameter& parameter, const at::Tensor& grad);

// Rows of W are split over tp (outputs).
class ColumnParallelLinear {
 public:
  struct Options {
    int64_t in = 0, out = 0;  // of the whole
    bool bias = false;
    double init_std = 0;
    int stride = 1;  // Parameter::partition_stride
  };
  ColumnParallelLinear(LayerBuild& build, const std::string& name, const Options& options);
  at::Tensor Forward(const at::Tensor& x) const { return ColumnParallelOp(x, weight_, bias_, tp_); }
  // Without the bias, for a caller that fuses it into what follows.
  at::Tensor ForwardNoBias(const at::Tensor& x) const {
    return ColumnParallelOp(x, weight_, nullptr, tp_);
  }
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }  // null without

 private:
  TensorParallel tp_;
  ParameterPtr weight_, bias_;
};

// Columns of W are split over tp (inputs); the bias is replicated and added after the reduction,
// by the caller (bias()), which fuses it with dropout and the residual.
class RowParallelLinear {
 public:
  RowParallelLinear(LayerBuild& build, const std::string& name, int64_t in, int64_t out, bool bias,
                    double init_std);
  at::Tensor ForwardNoBias(const at::Tensor& x) const { return RowParallelOp(x, weight_, tp_); }
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 private:
  TensorParallel tp_;
  ParameterPtr weight_, bias_;
};

}  // namespace muster
