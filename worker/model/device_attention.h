// Attention on a GPU by the fused kernels that LibTorch carries: FlashAttention-2 (Dao 2023)
// for bf16 and fp16, the memory-efficient kernel (Rabe and Staats 2021) for fp32. Neither builds
// the (S, S) matrix. Without dropout, since those kernels draw from the process's default
// generator. The sums of the backward pass are in no fixed order unless ATen's deterministic
// algorithms are on.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

// All (B, heads, S, D); any strides but D's, which is 1.
struct HeadTensors {
  at::Tensor q, k, v;
};

// What backward reads besides the inputs.
struct DeviceAttended {
  at::Tensor out;  // (B, heads, S, D)
  at::Tensor lse, seed, offset, cum_q, cum_k;
  int64_t max_q = 0, max_k = 0;
  std::vector<int64_t> lse_sizes;  // of lse: (B, heads, S), with more rows or another dim of 1
};

// A GPU, not fp64, D a multiple of 8 up to 128.
bool DeviceAttentionTakes(const at::Tensor& qkv, int64_t channels);

// Causal: as many queries as keys, query i sees the first i + 1. Else every query sees every key.
DeviceAttended DeviceAttention(const HeadTensors& in, bool causal = true);

// The three gradients, shaped as the inputs. With the out and lse of attention to more keys than
// these: this part's share of them.
HeadTensors DeviceAttentionBackward(const HeadTensors& in, const DeviceAttended& forward,
                                    const at::Tensor& dout, bool causal = true);

// ln sum exp of the scaled scores as (B, heads, queries), and back to the layout that the kernel
// gave `forward`.
at::Tensor DevicePlainLse(const DeviceAttended& forward, int64_t queries);
at::Tensor DeviceKernelLse(const DeviceAttended& forward, const at::Tensor& lse);

}  // namespace muster
