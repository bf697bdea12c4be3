// Eight neighbouring elements at a time, as fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace muster::cuda {

constexpr int kVector = 8;

template <class T>
struct alignas(16) Pack {
  T values[kVector];
};

inline __device__ float ToFloat(float x) { return x; }
inline __device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
inline __device__ float ToFloat(__half x) { return __half2float(x); }
template <class T>
__device__ T FromFloat(float x);
template <>
inline __device__ float FromFloat<float>(float x) {
  return x;
}
template <>
inline __device__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16(x);
}
template <>
inline __device__ __half FromFloat<__half>(float x) {
  return __float2half(x);
}

template <class T>
__device__ void Load(const T* from, float (&to)[kVector]) {
  const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(from);
#pragma unroll
  for (int i = 0; i < kVector; ++i) to[i] = ToFloat(pack.values[i]);
}

// Zeros where there is nothing to load.
template <class T>
__device__ void LoadOrZero(const T* from, int64_t offset, float (&to)[kVector]) {
  if (from != nullptr) return Load(from + offset, to);
#pragma unroll
  for (int i = 0; i < kVector; ++i) to[i] = 0;
}

template <class T>
__device__ void Store(T* to, const float (&from)[kVector]) {
  Pack<T> pack;
#pragma unroll
  for (int i = 0; i < kVector; ++i) pack.values[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// Sum over the block's threads, to all of them. `scratch`: 32 floats of shared memory.
inline __device__ float BlockSum(float value, float* scratch) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : 0;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// Calls launch(T{}) with the type of elements.
template <class Launch>
void ForType(int type, Launch launch) {
  if (type == 0) return launch(float{});
  if (type == 1) return launch(__nv_bfloat16{});
  launch(__half{});
}

}  // namespace muster::cuda
