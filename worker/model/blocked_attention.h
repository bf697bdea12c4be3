// Causal attention in bf16 by oneDNN's small matrix products (LibTorch's cpublas::brgemm):
// LibTorch's own flash kernel takes that path only on CPUs with AMX and is several times slower
// elsewhere. Scores, softmax and every sum are fp32; probabilities and score gradients are rounded
// to bf16 before they enter a product, as in flash attention (Dao et al. 2022). The hidden half of
// the scores is skipped in blocks. One task = one sample and one query group, so results do not
// depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

// All of (B, S, heads or groups, D), any strides but that of D, which is 1. heads = r * groups;
// query head h reads key and value head h / r.
struct AttentionTensors {
  at::Tensor q, k, v;
};

// bf16 on a CPU with bf16 instructions, S a multiple of 64, D of 2, S at most 4096.
bool BlockedAttentionTakes(const AttentionTensors& in);

// Writes out, like q; returns ln sum exp of the scaled scores, (B, heads, S) fp32.
at::Tensor BlockedAttention(const AttentionTensors& in, const at::Tensor& out);

// dout and out like q; writes the three gradients, shaped as the inputs, any strides but D's.
void BlockedAttentionBackward(const AttentionTensors& in, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& dout,
                              const AttentionTensors& grads);

}  // namespace muster
