// Sums over contiguous tensors in one pass of memory, on the threads of this rank. Deterministic:
// a tensor is cut into chunks of a fixed size whose sums are added in order, so neither the number
// of threads nor the bucket layout changes a bit.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

// All: contiguous, fp32, fp64, bf16 or fp16 (checked). On a CUDA tensor they synchronise, but for
// DeviceNorm.

// Sum of (scale * x)^2 in fp64.
double SumOfSquares(const at::Tensor& x, double scale = 1.0);
// The same of each tensor; on a GPU with one synchronisation for all of them.
std::vector<double> SumsOfSquares(const std::vector<at::Tensor>& xs, double scale = 1.0);
// L2 norm of a GPU's tensor, as a scalar fp64 tensor on it: the GPU is not waited for.
at::Tensor DeviceNorm(const at::Tensor& x);
// x <- scale * x; returns the sum of x^2 before that, in fp64.
double ScaleAndSumOfSquares(at::Tensor x, double scale);
// How many of scale * x are exactly zero.
int64_t CountZeros(const at::Tensor& x, double scale = 1.0);

}  // namespace muster
