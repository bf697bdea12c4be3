// Rotary position embedding (Su et al. 2021, RoFormer), in Megatron's non-interleaved form: channel
// i is paired with channel i + rot/2 of the first `rot` channels of a head; the rest pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/transformer_config.h"

namespace muster {

class RotaryTable {
 public:
  // rot = int(kv_channels * rotary_percent), even. Angles are computed in fp32 as Megatron's (fp64
  // for fp64 jobs) and kept in `dtype`.
  RotaryTable(const TransformerConfig& config, at::ScalarType dtype, at::Device device);

  int64_t rotary_dim() const { return rotary_dim_; }
  // x (B, S, heads, D), any strides -> the same shape, contiguous. Position of row s is s.
  at::Tensor Rotate(const at::Tensor& x) const;
  // The transpose of Rotate, which is its inverse: gradients go through it.
  at::Tensor RotateBack(const at::Tensor& x) const;
  // Rotate, recorded in autograd's graph.
  at::Tensor RotateOp(const at::Tensor& x) const;

 private:
  at::Tensor Turn(const at::Tensor& x, const at::Tensor& sin) const;

  int64_t rotary_dim_ = 0;
  at::Tensor cos_, sin_, minus_sin_;  // (positions, 1, rot/2)
};

}  // namespace muster
