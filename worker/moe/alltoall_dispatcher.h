// Sends each token to the ranks of its experts (reference 14.5):
//
//   permute by expert; all-to-all over ep of rows and weights; gather over etp; chunks sorted by
//   expert;  experts;  chunks sorted back; reduce-scatter over etp; all-to-all back; sum by token
//
// How many rows travel is exchanged before, over tp_ep, while rows are permuted; with padding to
// capacity it is known. That exchange is the only one that the host waits for on a GPU. With one
// rank nothing is exchanged.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/moe/dispatch_plan.h"
#include "worker/moe/moe_config.h"
#include "worker/moe/permute.h"
#include "worker/moe/token_dispatcher.h"

namespace muster {

class AllToAllDispatcher final : public TokenDispatcher {
 public:
  // With ep or etp above 1 their groups and tp_ep are not null, and tp_ep's rank is
  // ep_rank * etp_size + etp_rank.
  AllToAllDispatcher(const MoeConfig& config, const ExpertParallel& groups);

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
