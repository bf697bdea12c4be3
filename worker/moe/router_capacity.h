// Drops the tokens that an expert has no room for (reference 14.4).
#pragma once

#include "worker/moe/moe_config.h"
#include "worker/moe/routed_tokens.h"

namespace muster {

// `routed` as it is without a capacity factor, or where all of this rank's T tokens fit; else each
// expert keeps ExpertCapacity tokens:
//   probs     those with the largest weights
//   position  what topk takes of the column of zeros and ones: the order of its ties decides, which
//             is not that of the tokens (as in Megatron)
// With pad_to_capacity each expert gets exactly that many rows (all T where more would fit): the
// missing ones are tokens that did not choose it, with weight 0.
RoutedTokens WithinCapacity(const MoeConfig& config, const RoutedTokens& routed);

}  // namespace muster
