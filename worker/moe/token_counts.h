// Numbers of tokens that the MoE layers reckon with. Pure.
#pragma once

#include <cstdint>

namespace muster {

// Rows that an expert takes at most: ceil(tokens * topk / num_experts * factor) (reference 14.4).
// `tokens`: of this rank.
int64_t ExpertCapacity(int64_t tokens, int64_t topk, int64_t num_experts, double factor);

}  // namespace muster
