// Chooses the experts of each token and their weights (reference 14.4; Megatron's TopKRouter).
//
//   logits = (x u) W^T + b,  u uniform in 1 -+ jitter; in the router's dtype
//   softmax              the k largest logits, softmax over these k
//   softmax, pre         the k largest of the softmax over all, as they are
//   sigmoid              s = sigmoid(logits): the k largest s + expert bias, s / sum over the k
//   sinkhorn             in training the k largest of a doubly normalised exp(logits); weights
//                        sigmoid (k = 1) or the entries of a softmax over all
//   weights *= scaling factor; then capacity (router_capacity.h)
//
// Scores are reckoned in fp64 where logits are fp64, else in fp32 (Megatron: always fp32, which
// would leave fp64 layouts only equal to fp32). Ties go to the lowest expert number, on every
// device and layout: the choice is a function of one token's logits alone (router_choice.h).
//
// Side losses (router_losses.h) and the counts of the expert bias apply only with gradients on, so
// that the first run of a recomputed segment is not counted. Nothing is read back from a device but
// for sinkhorn's end, as in Megatron. Throws CollectiveError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/moe/moe_config.h"
#include "worker/moe/routed_tokens.h"
#include "worker/moe/router_losses.h"
#include "worker/ops/parallel_groups.h"
#include "worker/parallel/expert_state.h"
#include "worker/parallel/parameter.h"

namespace muster {

class TopKRouter {
 public:
  struct Options {
    MoeConfig config;
    std::string name;       // "decoder.layers.N.mlp.router"; the expert bias is NAME.expert_bias
    ParameterPtr weight;    // (E, H). The caller flags it sequence_parallel where tokens are split
    ParameterPtr bias;      // (E), or null
    ExpertParallel groups;  // tp_cp and tp_dp_cp: the groups of the side losses' counts
    ExpertState* experts = nullptr;  // outlives the router
    at::Generator jitter;  // a region that differs where the tokens do; needed with jitter only
  };
  // Registers its expert bias and its global counts with `experts`: once, in layer order.
  explicit TopKRouter(Options options);

  // x (T, H): this rank's tokens, T = tokens.rows().
  // padding: (T) bool, true where a token is padding, or undefined. It is routed as any other, but
  // not counted in side losses and expert bias.
  // training: of the model. False: no side losses.
  RoutedTokens Forward(const at::Tensor& x, const RoutedLayout& tokens, const at::Tensor& padding,
                       bool training) const;

 private:
  at::Tensor Gate(const at::Tensor& x) const;
  // logits (T, E) -> (T, k) int64.
  at::Tensor Choose(const at::Tensor& logits, bool training) const;
  at::Tensor WithSideLosses(const at::Tensor& logits, const RoutedLayout& tokens,
                            const at::Tensor& padding, const at::Tensor& choice) const;

  const Options options_;
  std::shared_ptr<GlobalExpertCounts> global_counts_;  // null without global_aux_loss
  at::Tensor expert_bias_, bias_counts_;               // (E) fp32; undefined without
};

}  // namespace muster
