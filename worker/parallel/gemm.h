// Matrix products of the engine. On CPUs fp32 goes to oneDNN instead of the BLAS that at::mm uses:
// same precision, and over twice as fast where that BLAS has no AVX-512 path for the processor
// (AMD; measured 105 against 230 GFLOP/s on one core). fp16 on CPUs is multiplied in fp32 and
// rounded once: without fp16 instructions LibTorch would do it element by element. Nothing is
// recorded in autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

// x (n, k), w (m, k), bias (m) or undefined -> x w^T + bias (n, m). Any strides.
at::Tensor GemmNT(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});
// x (n, k), w (k, m) -> x w (n, m).
at::Tensor GemmNN(const at::Tensor& x, const at::Tensor& w);
// a (n, m), b (n, k) -> a^T b (m, k).
at::Tensor GemmTN(const at::Tensor& a, const at::Tensor& b);
// The same for fp16 operands with an fp32 result, which cannot overflow where sums of scaled
// gradients leave fp16's range.
at::Tensor GemmTNToFloat(const at::Tensor& a, const at::Tensor& b);

}  // namespace muster
