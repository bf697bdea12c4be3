// Attention in bf16 by oneDNN's small matrix products (LibTorch's cpublas::brgemm):
// LibTorch's own flash kernel takes that path only on CPUs with AMX and is several times slower
// elsewhere. Scores, softmax and every sum are fp32; probabilities and score gradients are rounded
// to bf16 before they enter a product, as in flash attention (Dao et al. 2022). The hidden half of
// the scores is skipped in blocks. One task = one sample and one query group, so results do not
// depend on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

// q (B, queries, heads, D), k and v (B, keys, groups, D), any strides but that of D, which is 1.
// heads = r * groups; query head h reads key and value head h / r.
struct AttentionTensors {
  at::Tensor q, k, v;
};

// What each query sees: the first past + i + 1 keys, i being its row here, or all that there are.
// Causal attention of one sequence: 0. Every query sees a key, every key is seen.

// bf16 on a CPU with bf16 instructions; queries, keys and `past` multiples of 64 (`past` may also
// exceed the keys), D of 2, at most 4096 keys.
bool BlockedAttentionTakes(const AttentionTensors& in, int64_t past = 0);

// Writes out, like q; returns ln sum exp of the scaled scores, (B, heads, queries) fp32, dense.
at::Tensor BlockedAttention(const AttentionTensors& in, const at::Tensor& out, int64_t past = 0);

struct BlockedBackwardInputs {
  at::Tensor out, dout;  // like q
  at::Tensor lse;        // (B, heads, queries), queries dense
};
// Writes the three gradients, shaped as the inputs, any strides but D's. With the out and lse of
// attention to more keys than these: this part's share of the gradients (Dao et al. 2022,
// algorithm 4 reads no more of the others).
void BlockedAttentionBackward(const AttentionTensors& in, const BlockedBackwardInputs& backward,
                              const AttentionTensors& grads, int64_t past = 0);

}  // namespace muster
