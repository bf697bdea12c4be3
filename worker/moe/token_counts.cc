#include "worker/moe/token_counts.h"

#include <cmath>

namespace muster {

int64_t ExpertCapacity(int64_t tokens, int64_t topk, int64_t num_experts, double factor) {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(tokens * topk) / static_cast<double>(num_experts) * factor));
}

}  // namespace muster
