// Every rank sees all tokens of its group and takes those of its experts (reference 14.5):
//
//   all-gather over tp_ep of map, weights and tokens; permute the rows of the local experts;
//   experts;  sum by token; reduce-scatter over tp_ep
#pragma once

#include "worker/moe/dispatch_plan.h"
#include "worker/moe/moe_config.h"
#include "worker/moe/token_dispatcher.h"

namespace muster {

class AllGatherDispatcher final : public TokenDispatcher {
 public:
  // groups.tp_ep has more than one member.
  AllGatherDispatcher(const MoeConfig& config, const ExpertParallel& groups);

 private:
  Dispatched DispatchRows(const at::Tensor& x, const RoutedTokens& routed,
                          const Meanwhile& meanwhile) override;
  at::Tensor CombineRows(const Dispatched& dispatched, const at::Tensor& outputs,
                         const Meanwhile& meanwhile) override;

  const MoeConfig config_;
  const ExpertParallel groups_;
  const ExpertGrid grid_;
};

}  // namespace muster
