// Rotary position embedding (Su et al. 2021, RoFormer), in Megatron's non-interleaved form: channel
// i is paired with channel i + rot/2 of the first `rot` channels of a head; the rest pass through.
// With context parallelism rows are this rank's two chunks of the sequence (context_slices.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/data/context_slices.h"
#include "worker/model/transformer_config.h"

namespace muster {

class RotaryTable {
 public:
  // rot = int(kv_channels * rotary_percent), even. Angles are computed in fp32 as Megatron's (fp64
  // for fp64 jobs) and kept in `dtype`.
  RotaryTable(const TransformerConfig& config, at::ScalarType dtype, at::Device device,
              ContextPlace place = {});

  int64_t rotary_dim() const { return rotary_dim_; }
  // x (B, S, heads, D), any strides -> the same shape, contiguous. Position of row s is s, or that
  // of the place's token s.
  at::Tensor Rotate(const at::Tensor& x) const;
  void RotateInto(const at::Tensor& x, const at::Tensor& out) const;  // any strides
  // The transpose of Rotate, which is its inverse: gradients go through it.
  at::Tensor RotateBack(const at::Tensor& x) const;
  void RotateBackInto(const at::Tensor& x, const at::Tensor& out) const;
  // Rotate, recorded in autograd's graph.
  at::Tensor RotateOp(const at::Tensor& x) const;

 private:
  // Row s of x has position first + s.
  void TurnRows(const at::Tensor& x, const at::Tensor& sin, int64_t first,
                const at::Tensor& out) const;
  void Turn(const at::Tensor& x, const at::Tensor& sin, const at::Tensor& out) const;

  ContextPlace place_;
  int64_t rotary_dim_ = 0;
  at::Tensor cos_, sin_, minus_sin_;  // (positions, 1, rot/2)
};

}  // namespace muster
