// Context-parallel attention by a ring (Liu et al. 2023, Ring Attention; reference 14.3, "p2p").
// In step i rank r attends to the keys of rank (r - i) mod n, while they travel on to rank r + 1
// and the next ones arrive. Under the causal mask a step is
//   the diagonal             for its own keys: both chunks, causal
//   all queries, first half  of the keys, for a rank before it: the second half lies behind them
//   second half, all keys    for a rank behind it
// so that all ranks have as much to do in every step, and none computes what is masked. With an
// explicit mask every step is full and uses its columns.
//
// Backward begins with the keys that came last and turns the ring the other way. A step's message
// is KV, then KV and their gradient so far, in the last step the gradient alone; it comes home in
// step n - 1, which is the diagonal. dQ is summed where it is.
//
// The exchange of a step is posted before its attention is computed, and waited for after it: n - 1
// messages a rank forward, n backward. Throws CollectiveError.
#pragma once

#include "worker/comm/communicator.h"
#include "worker/model/cp_types.h"

namespace muster {

// `own.kv` is given up: it is a buffer of the ring. `out`, like q, any strides: written, and kept.
ContextKept RingAttention(Communicator& ring, const ContextHeads& own,
                          const ContextOptions& options, const at::Tensor& out);
ContextGrads RingAttentionBackward(Communicator& ring, const ContextKept& kept,
                                   const ContextOptions& options, const at::Tensor& dout);

}  // namespace muster
