#include "worker/cuda/row_kernels.h"
#include "worker/cuda/vector_load.cuh"

namespace muster::cuda {
namespace {

// gelu(x) = x P(x), P the normal distribution (Hendrycks and Gimpel 2016).
__device__ float Gelu(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
__device__ float GeluSlope(float x) {
  const float p = 0.5f * (1 + erff(x * 0.70710678f));
  return p + x * 0.39894228f * __expf(-0.5f * x * x);
}
__device__ float Sigmoid(float x) { return 1 / (1 + __expf(-x)); }

constexpr int kThreads = 256;

template <class T, bool kSwiglu>
__global__ void ForwardKernel(const T* x, const T* bias, T* y, int64_t rows, int64_t cols) {
  const int64_t width = kSwiglu ? 2 * cols : cols, packs = cols / kVector;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= rows * packs) return;
  const int64_t row = index / packs, col = index % packs * kVector;
  float a[kVector], b[kVector], out[kVector];
  Load(x + row * width + col, a);
  LoadOrZero(bias, col, b);
#pragma unroll
  for (int i = 0; i < kVector; ++i) a[i] += b[i];
  if constexpr (kSwiglu) {
    float gate_bias[kVector];
    Load(x + row * width + cols + col, b);
    LoadOrZero(bias, cols + col, gate_bias);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[i] = a[i] * Sigmoid(a[i]) * (b[i] + gate_bias[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[i] = Gelu(a[i]);
  }
  Store(y + row * cols + col, out);
}

// A block: 32 x 8 threads, 256 columns, every rows_a_block rows. Sums of a column over the block's
// rows are added in a fixed order.
constexpr int kLanes = 32, kRowLanes = 8;

__device__ void AddUp(const float (&sums)[kVector], float* partial, int64_t col, bool in_range,
                      float (*scratch)[kLanes * kVector]) {
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kVector; ++i) scratch[threadIdx.y][threadIdx.x * kVector + i] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || !in_range) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    float sum = 0;
    for (int lane = 0; lane < kRowLanes; ++lane) sum += scratch[lane][threadIdx.x * kVector + i];
    partial[col + i] = sum;
  }
}

template <class T, bool kSwiglu>
__global__ void BackwardKernel(const T* dy, const T* x, const T* bias, T* dx, float* partials,
                               int64_t rows, int64_t cols, int64_t rows_a_block) {
  __shared__ float scratch[kRowLanes][kLanes * kVector];
  const int64_t width = kSwiglu ? 2 * cols : cols;
  const int64_t col = (int64_t{blockIdx.x} * kLanes + threadIdx.x) * kVector;
  const bool in_range = col < cols;
  float sums[kVector] = {}, gate_sums[kVector] = {}, bias_a[kVector] = {}, bias_b[kVector] = {};
  if (in_range) {
    LoadOrZero(bias, col, bias_a);
    if (kSwiglu) LoadOrZero(bias, cols + col, bias_b);
  }
  const int64_t first = blockIdx.y * rows_a_block;
  const int64_t last = min(rows, first + rows_a_block);
  for (int64_t row = first + threadIdx.y; in_range && row < last; row += kRowLanes) {
    float g[kVector], a[kVector], out[kVector];
    Load(dy + row * cols + col, g);
    Load(x + row * width + col, a);
#pragma unroll
    for (int i = 0; i < kVector; ++i) a[i] += bias_a[i];
    if constexpr (kSwiglu) {
      float b[kVector], gate[kVector];
      Load(x + row * width + cols + col, b);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        b[i] += bias_b[i];
        const float s = Sigmoid(a[i]);
        out[i] = g[i] * b[i] * s * (1 + a[i] * (1 - s));
        gate[i] = g[i] * a[i] * s;
        sums[i] += out[i];
        gate_sums[i] += gate[i];
      }
      Store(dx + row * width + cols + col, gate);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        out[i] = g[i] * GeluSlope(a[i]);
        sums[i] += out[i];
      }
    }
    Store(dx + row * width + col, out);
  }
  if (partials == nullptr) return;
  float* const partial = partials + blockIdx.y * width;
  AddUp(sums, partial, col, in_range, scratch);
  if (kSwiglu) AddUp(gate_sums, partial, cols + col, in_range, scratch);
}

}  // namespace

int NumPartials(int64_t rows) {
  const int64_t blocks = (rows + 63) / 64;
  return static_cast<int>(blocks < 256 ? (blocks < 1 ? 1 : blocks) : 256);
}

int Activation(const ActivationArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  const int64_t packs = a.rows * (a.cols / kVector);
  const auto blocks = static_cast<unsigned>((packs + kThreads - 1) / kThreads);
  ForType(static_cast<int>(a.type), [&](auto t) {
    using T = decltype(t);
    const auto kernel = a.swiglu ? ForwardKernel<T, true> : ForwardKernel<T, false>;
    kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(a.x), static_cast<const T*>(a.bias), static_cast<T*>(a.y), a.rows,
        a.cols);
  });
  return cudaGetLastError();
}

int ActivationBackward(const ActivationBackwardArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  const int parts = NumPartials(a.rows);
  const dim3 blocks(static_cast<unsigned>((a.cols / kVector + kLanes - 1) / kLanes), parts);
  const int64_t rows_a_block = (a.rows + parts - 1) / parts;
  ForType(static_cast<int>(a.type), [&](auto t) {
    using T = decltype(t);
    const auto kernel = a.swiglu ? BackwardKernel<T, true> : BackwardKernel<T, false>;
    kernel<<<blocks, dim3(kLanes, kRowLanes), 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const T*>(a.dy), static_cast<const T*>(a.x), static_cast<const T*>(a.bias),
        static_cast<T*>(a.dx), a.partials, a.rows, a.cols, rows_a_block);
  });
  return cudaGetLastError();
}

}  // namespace muster::cuda
