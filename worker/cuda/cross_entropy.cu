#include <cfloat>

#include "worker/cuda/row_kernels.h"
#include "worker/cuda/vector_load.cuh"

namespace muster::cuda {
namespace {

constexpr int kThreads = 512;

// Largest value and sum of exp(x - largest) of what was seen (Milakov and Gimelshein 2018).
struct Running {
  float max = -FLT_MAX, sum = 0;
  __device__ void Add(float x) {
    if (x > max) {
      sum = sum * __expf(max - x) + 1;
      max = x;
    } else {
      sum += __expf(x - max);
    }
  }
  __device__ void Merge(float other_max, float other_sum) {
    const float both = fmaxf(max, other_max);
    sum = sum * __expf(max - both) + other_sum * __expf(other_max - both);
    max = both;
  }
};

// One block a row.
template <class T>
__global__ void ForwardKernel(const T* logits, const int64_t* labels, int64_t begin, int64_t cols,
                              float* lse, float* loss) {
  const int64_t row = blockIdx.x;
  const T* const x = logits + row * cols;
  Running running;
  // Rows of an odd width do not begin at multiples of 16 bytes: those are read one by one.
  const int64_t packed = cols % kVector == 0 ? cols : 0;
  for (int64_t i = threadIdx.x * kVector; i < packed; i += kThreads * kVector) {
    float values[kVector];
    Load(x + i, values);
    float largest = values[0];
#pragma unroll
    for (int j = 1; j < kVector; ++j) largest = fmaxf(largest, values[j]);
    largest = fmaxf(largest, running.max);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += __expf(values[j] - largest);
    running.sum = running.sum * __expf(running.max - largest) + sum;
    running.max = largest;
  }
  for (int64_t i = packed + threadIdx.x; i < cols; i += kThreads) running.Add(ToFloat(x[i]));

  for (int offset = 16; offset > 0; offset /= 2) {
    const float max = __shfl_xor_sync(0xffffffffu, running.max, offset);
    const float sum = __shfl_xor_sync(0xffffffffu, running.sum, offset);
    running.Merge(max, sum);
  }
  __shared__ float maxima[kThreads / 32], sums[kThreads / 32];
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = running.max;
    sums[threadIdx.x / 32] = running.sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) running.Merge(maxima[warp], sums[warp]);
  const float result = running.max + logf(running.sum);
  lse[row] = result;
  const int64_t label = labels[row] - begin;
  loss[row] = label >= 0 && label < cols ? result - ToFloat(x[label]) : 0.0f;
}

template <class T>
__global__ void BackwardKernel(T* logits, const int64_t* labels, int64_t begin, const float* lse,
                               const float* dloss, int64_t cols) {
  const int64_t row = blockIdx.x;
  T* const x = logits + row * cols;
  const float shift = lse[row], scale = dloss[row];
  const int64_t label = labels[row] - begin;  // no column of this shard: never met below
  const int64_t packed = cols % kVector == 0 ? cols : 0;
  for (int64_t i = threadIdx.x * kVector; i < packed; i += kThreads * kVector) {
    float values[kVector];
    Load(x + i, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      values[j] = (__expf(values[j] - shift) - (i + j == label ? 1.0f : 0.0f)) * scale;
    }
    Store(x + i, values);
  }
  for (int64_t i = packed + threadIdx.x; i < cols; i += kThreads) {
    const float p = __expf(ToFloat(x[i]) - shift) - (i == label ? 1.0f : 0.0f);
    x[i] = FromFloat<T>(p * scale);
  }
}

}  // namespace

int CrossEntropy(const CrossEntropyArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  ForType(static_cast<int>(a.type), [&](auto t) {
    using T = decltype(t);
    ForwardKernel<T>
        <<<static_cast<unsigned>(a.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<const T*>(a.logits), a.labels, a.begin, a.cols, a.lse, a.loss);
  });
  return cudaGetLastError();
}

int CrossEntropyBackward(const CrossEntropyBackwardArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  ForType(static_cast<int>(a.type), [&](auto t) {
    using T = decltype(t);
    BackwardKernel<T>
        <<<static_cast<unsigned>(a.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            static_cast<T*>(a.logits), a.labels, a.begin, a.lse, a.dloss, a.cols);
  });
  return cudaGetLastError();
}

}  // namespace muster::cuda
