// A mixture of experts in a layer's place for the feed-forward block (reference 14.4, 14.5;
// Megatron: MoELayer): the router chooses each token's experts, the dispatcher brings tokens to the
// ranks that hold them and the results back, and a shared expert, where there is one, sees all
// tokens.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/experts.h"
#include "worker/model/layer_build.h"
#include "worker/model/shared_expert.h"
#include "worker/moe/router.h"
#include "worker/moe/token_dispatcher.h"

namespace muster {

class MoeLayer {
 public:
  // `name`: "decoder.layers.N.mlp". Needs build.experts.
  MoeLayer(LayerBuild& build, const std::string& name);

  // x (N, H) normed, or this rank's rows of it -> the same shape, biases included. Collective over
  // the experts' groups, and where the side losses need counts over tp_cp or tp_dp_cp.
  at::Tensor Forward(const at::Tensor& x, const TokenLayout& layout, bool training) const;

 private:
  const int64_t sequence_parts_;
  const bool shared_expert_overlap_;
  TopKRouter router_;
  std::unique_ptr<TokenDispatcher> dispatcher_;
  Experts experts_;
  std::optional<SharedExpert> shared_expert_;
};

}  // namespace muster
