// The arithmetic of the norms, without autograd. Rows (N, H); statistics and parameter gradients in
// the accumulation type: fp32, or fp64 for fp64 tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/transformer_config.h"

namespace muster {

struct NormForwardResult {
  at::Tensor x;           // residual + mask * (branch + bias); the residual itself without a branch
  at::Tensor y;           // its norm
  at::Tensor mean, rstd;  // (N); no mean for RMSNorm
};

struct NormInputs {
  at::Tensor residual, branch, bias, drop_mask;  // all but residual may be undefined
  at::Tensor weight, beta;                       // beta: LayerNorm's bias; undefined for RMSNorm
  double epsilon = 1e-5;
};
NormForwardResult NormForward(Normalization kind, const NormInputs& inputs);

// NormForward's x alone. On the CPU to the bit; on a GPU up to the rounding of bf16 and fp16.
at::Tensor FinishAddForward(const at::Tensor& residual, const at::Tensor& branch,
                            const at::Tensor& bias, const at::Tensor& drop_mask);
struct FinishAddGrads {
  at::Tensor dbranch;  // dx, times the drop mask where there is one
  at::Tensor dbias;    // sum over rows of dbranch; undefined when not wanted
};
FinishAddGrads FinishAddBackward(const at::Tensor& dx, const at::Tensor& drop_mask,
                                 bool want_dbias);

struct NormBackwardResult {
  at::Tensor dx;                     // d_norm + dx_in: the gradient of the residual stream
  at::Tensor dbranch;                // dx, times the drop mask where there is one
  at::Tensor dweight, dbeta, dbias;  // dbias = sum over rows of dbranch
};
struct NormBackwardInputs {
  at::Tensor dy, dx_in;  // gradients of y and of x; dx_in may be undefined
  at::Tensor x, mean, rstd, weight, drop_mask;
  bool want_dbias = false, want_dbeta = false;
};
NormBackwardResult NormBackward(Normalization kind, const NormBackwardInputs& inputs);

}  // namespace muster
