// Context-parallel attention by gathering (reference 14.3, "all_gather"): K and V of all ranks are
// gathered and put into the order of the sequence, and each of this rank's two chunks of queries
// attends to the prefix that it sees. Backward gathers again, so that nothing of the whole sequence
// is kept, and reduce-scatters dK and dV. Throws CollectiveError.
#pragma once

#include "worker/comm/communicator.h"
#include "worker/model/cp_types.h"

namespace muster {

// `out`, like q, any strides: written, and kept.
ContextKept GatherAttention(Communicator& cp, const ContextHeads& own,
                            const ContextOptions& options, const at::Tensor& out);
ContextGrads GatherAttentionBackward(Communicator& cp, const ContextKept& kept,
                                     const ContextOptions& options, const at::Tensor& dout);

}  // namespace muster
