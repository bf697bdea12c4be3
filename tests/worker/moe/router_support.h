// Helpers of the router's tests: a router whose logits are its input, and side losses by their
// definitions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "worker/comm/communicator.h"
#include "worker/moe/router.h"
#include "worker/parallel/expert_state.h"

namespace muster {

// The weight is the identity, E = H, so that x is the logits and its gradient theirs.
struct LogitsRouter {
  explicit LogitsRouter(const MoeConfig& config, at::ScalarType dtype = at::kDouble,
                        const ExpertParallel& groups = {});

  std::unique_ptr<ExpertState> experts = std::make_unique<ExpertState>();
  std::unique_ptr<TopKRouter> router;
};

MoeConfig RouterConfig(int64_t num_experts, int64_t topk);
// (T, E) standard normal, leaf with gradient.
at::Tensor RandomLogits(int64_t tokens, int64_t experts, uint64_t seed);

// Side losses straight from reference 14.4, of one process: name -> value with its coefficient.
// padding (T) bool or undefined.
std::map<std::string, double> SideLossesByDefinition(const MoeConfig& config,
                                                     const at::Tensor& logits,
                                                     const RoutedLayout& tokens,
                                                     const at::Tensor& padding);

// max |a - b|; NaN and different shapes count as infinite.
double LargestDifference(const at::Tensor& a, const at::Tensor& b);

}  // namespace muster
