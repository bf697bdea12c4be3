#include "worker/model/device_attention.h"

#include <array>
#include <limits>
#include <tuple>

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>

namespace muster {
namespace {

bool TakesCudnn(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

}  // namespace

bool DeviceAttentionTakes(const at::Tensor& qkv, int64_t channels) {
  return qkv.is_cuda() && qkv.scalar_type() != at::kDouble && channels % 8 == 0 && channels <= 128;
}

DeviceAttended DeviceAttention(const HeadTensors& in, bool causal) {
  DeviceAttended a;
  if (TakesCudnn(in.q)) {
    auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug_mask] =
        at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, /*attn_bias=*/std::nullopt,
                                                /*compute_log_sumexp=*/true,
                                                /*dropout_p=*/0.0, causal);
    return {.out = out,
            .lse = lse,
            .seed = seed,
            .offset = offset,
            .cum_q = cum_q,
            .cum_k = cum_k,
            .max_q = max_q.expect_int(),
            .max_k = max_k.expect_int(),
            .lse_sizes = lse.sizes().vec()};
  }
  std::tie(a.out, a.lse, a.seed, a.offset) = at::_scaled_dot_product_efficient_attention(
      in.q, in.k, in.v, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
      causal);
  a.lse_sizes = a.lse.sizes().vec();
  return a;
}

HeadTensors DeviceAttentionBackward(const HeadTensors& in, const DeviceAttended& forward,
                                    const at::Tensor& dout, bool causal) {
  HeadTensors d;
  if (TakesCudnn(in.q)) {
    std::tie(d.q, d.k, d.v) = at::_scaled_dot_product_cudnn_attention_backward(
        dout, in.q, in.k, in.v, forward.out, forward.lse, forward.seed, forward.offset,
        /*attn_bias=*/at::Tensor(), forward.cum_q, forward.cum_k, forward.max_q, forward.max_k,
        /*dropout_p=*/0.0, causal);
    return d;
  }
  at::Tensor no_bias_gradient;
  std::tie(d.q, d.k, d.v, no_bias_gradient) = at::_scaled_dot_product_efficient_attention_backward(
      dout, in.q, in.k, in.v, /*attn_bias=*/at::Tensor(), forward.out, forward.lse, forward.seed,
      forward.offset, /*dropout_p=*/0.0, std::array<bool, 4>{true, true, true, false}, causal);
  return d;
}

at::Tensor DevicePlainLse(const DeviceAttended& forward, int64_t queries) {
  const std::vector<int64_t>& sizes = forward.lse_sizes;
  return forward.lse.reshape({sizes[0], sizes[1], -1}).narrow(2, 0, queries);
}

at::Tensor DeviceKernelLse(const DeviceAttended& forward, const at::Tensor& lse) {
  const int64_t more = forward.lse_sizes[2] - lse.size(2);
  // Rows that no query has get probabilities of zero.
  return at::constant_pad_nd(lse, {0, more}, std::numeric_limits<double>::infinity())
      .contiguous()
      .view(forward.lse_sizes);
}

}  // namespace muster
