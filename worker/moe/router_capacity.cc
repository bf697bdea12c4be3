#include "worker/moe/router_capacity.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "worker/moe/token_counts.h"

namespace muster {

RoutedTokens WithinCapacity(const MoeConfig& config, const RoutedTokens& routed) {
  if (config.capacity_factor <= 0) return routed;
  const int64_t tokens = routed.map.size(0);
  const int64_t capacity =
      ExpertCapacity(tokens, config.topk, config.num_experts, config.capacity_factor);
  if (capacity > tokens) {
    if (!config.pad_to_capacity) return routed;
    return {.probs = routed.probs, .map = at::ones_like(routed.map)};
  }
  const at::Tensor rank_by =
      config.drop_policy == DropPolicy::kProbs ? routed.probs.detach() : routed.map.to(at::kInt);
  const at::Tensor kept =
      std::get<1>(at::topk(rank_by, capacity, /*dim=*/0, /*largest=*/true, /*sorted=*/false));
  at::Tensor map = at::zeros_like(routed.map).scatter_(0, kept, 1);
  if (!config.pad_to_capacity) map.logical_and_(routed.map);
  return {.probs = routed.probs.mul(map), .map = map};
}

}  // namespace muster
