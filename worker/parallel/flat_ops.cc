#include "worker/parallel/flat_ops.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/square.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include "common/base/check.h"
#include "worker/parallel/flat_kernels.h"

namespace muster {
namespace {

constexpr int64_t kChunk = int64_t{1} << 15;  // elements; a chunk of fp32 fits the L2 cache

// Adds fn(begin, count) over the chunks of [0, n), in order.
template <class Result, class Fn>
Result SumOverChunks(int64_t n, Fn fn) {
  const int64_t num_chunks = (n + kChunk - 1) / kChunk;
  if (num_chunks == 1) return fn(0, n);
  std::vector<Result> sums(num_chunks);
  at::parallel_for(0, num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c)
      sums[c] = fn(c * kChunk, std::min(kChunk, n - c * kChunk));
  });
  return std::accumulate(sums.begin(), sums.end(), Result{});
}

at::Tensor Scaled(const at::Tensor& x, double scale) { return scale == 1.0 ? x : x.mul(scale); }

}  // namespace

double SumOfSquares(const at::Tensor& x, double scale) {
  MUSTER_CHECK(x.is_contiguous());
  if (x.numel() == 0) return 0;
  // Not in place: an fp64 x that is not scaled is x itself.
  if (!x.is_cpu()) return at::square(Scaled(x, scale).to(at::kDouble)).sum().item<double>();
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, x.scalar_type(), "SumOfSquares", [&] {
        const scalar_t* data = x.const_data_ptr<scalar_t>();
        return SumOverChunks<double>(x.numel(), [&](int64_t begin, int64_t count) {
          return kernels::SumOfSquares(data + begin, count, scale);
        });
      });
}

std::vector<double> SumsOfSquares(const std::vector<at::Tensor>& xs, double scale) {
  std::vector<double> sums(xs.size(), 0.0);
  const bool on_device = !xs.empty() && !xs[0].is_cpu();
  if (!on_device) {
    for (size_t i = 0; i < xs.size(); ++i) sums[i] = SumOfSquares(xs[i], scale);
    return sums;
  }
  // In fp64, as on a CPU: squares of fp16 and fp32 values neither overflow nor lose digits there.
  const at::Tensor norms =
      at::stack(at::_foreach_norm(xs, /*ord=*/2, at::kDouble)).mul_(scale).cpu();
  for (size_t i = 0; i < xs.size(); ++i) {
    const double norm = norms.const_data_ptr<double>()[i];
    sums[i] = norm * norm;
  }
  return sums;
}

at::Tensor DeviceNorm(const at::Tensor& x) {
  // A norm in fp16 would be infinite beyond 65504 though no element is.
  const bool half = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  const std::optional<at::ScalarType> dtype = half ? std::optional(at::kFloat) : std::nullopt;
  return at::linalg_vector_norm(x, /*ord=*/2, /*dim=*/std::nullopt, /*keepdim=*/false, dtype)
      .to(at::kDouble);
}

double ScaleAndSumOfSquares(at::Tensor x, double scale) {
  MUSTER_CHECK(x.is_contiguous());
  if (x.numel() == 0) return 0;
  if (scale == 1.0) return SumOfSquares(x);
  if (!x.is_cpu()) {
    const double sum = SumOfSquares(x);
    x.mul_(scale);
    return sum;
  }
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, x.scalar_type(), "ScaleAndSumOfSquares", [&] {
        scalar_t* data = x.mutable_data_ptr<scalar_t>();
        return SumOverChunks<double>(x.numel(), [&](int64_t begin, int64_t count) {
          return kernels::ScaleAndSumOfSquares(data + begin, count, scale);
        });
      });
}

int64_t CountZeros(const at::Tensor& x, double scale) {
  MUSTER_CHECK(x.is_contiguous());
  if (x.numel() == 0) return 0;
  if (!x.is_cpu()) {
    // Scaled in fp32 at least: what is small is not zero.
    const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
    return x.numel() - Scaled(wide, scale).count_nonzero().item<int64_t>();
  }
  return AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, x.scalar_type(), "CountZeros", [&] {
        const scalar_t* data = x.const_data_ptr<scalar_t>();
        return SumOverChunks<int64_t>(x.numel(), [&](int64_t begin, int64_t count) {
          return kernels::CountZeros(data + begin, count, scale);
        });
      });
}

}  // namespace muster
