// Brings tokens to the ranks of their experts and the experts' outputs back (reference 14.5).
// Differentiable: the backward passes mirror each collective. Throws CollectiveError.
//
// Every member of the groups calls Dispatch and Combine in the same order, also with no tokens of
// its own or none for its experts; in the backward pass too, which holds as long as the result of
// Combine is part of the loss: the experts' outputs need not depend on the dispatched rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/moe/moe_config.h"
#include "worker/moe/routed_tokens.h"
#include "worker/ops/parallel_groups.h"

namespace muster {

// How the rows of one Dispatch go back; opaque to callers.
struct DispatchRoute {
  virtual ~DispatchRoute() = default;
};

// The rows of this rank's experts, expert by expert.
struct Dispatched {
  at::Tensor tokens;                     // (R, H)
  at::Tensor probs;                      // (R): the weight of each row's expert for its token
  std::vector<int64_t> rows_per_expert;  // by local expert; their sum is R
  std::shared_ptr<const DispatchRoute> route;
};

class TokenDispatcher {
 public:
  // Other work of the layer (a shared expert) to be done while rows travel. Called once, with
  // recording as it was; what it records runs while the gradients travel in the backward pass. It
  // must make no exchange over the experts' groups.
  using Meanwhile = std::function<void()>;

  virtual ~TokenDispatcher() = default;

  // x (T, H): this rank's tokens; T is the same on all members of tp_ep.
  Dispatched Dispatch(const at::Tensor& x, const RoutedTokens& routed,
                      const Meanwhile& meanwhile = nullptr) {
    return DispatchRows(x, routed, meanwhile);
  }
  // outputs (R, H): of the experts for dispatched.tokens, weights already applied -> (T, H), the
  // sum over each token's experts. With expert tensor parallelism outputs are this rank's share of
  // a sum over etp, which is taken here.
  at::Tensor Combine(const Dispatched& dispatched, const at::Tensor& outputs,
                     const Meanwhile& meanwhile = nullptr) {
    return CombineRows(dispatched, outputs, meanwhile);
  }

 private:
  virtual Dispatched DispatchRows(const at::Tensor& x, const RoutedTokens& routed,
                                  const Meanwhile& meanwhile) = 0;
  virtual at::Tensor CombineRows(const Dispatched& dispatched, const at::Tensor& outputs,
                                 const Meanwhile& meanwhile) = 0;
};

std::unique_ptr<TokenDispatcher> MakeTokenDispatcher(const MoeConfig& config,
                                                     const ExpertParallel& groups);

}  // namespace muster
