#include "worker/moe/token_dispatcher.h"

#include "worker/moe/allgather_dispatcher.h"
#include "worker/moe/alltoall_dispatcher.h"

namespace muster {

std::unique_ptr<TokenDispatcher> MakeTokenDispatcher(const MoeConfig& config,
                                                     const ExpertParallel& groups) {
  const bool alone = groups.ep_size * groups.etp_size == 1;
  if (!alone && config.dispatcher == TokenDispatcherType::kAllGather) {
    return std::make_unique<AllGatherDispatcher>(config, groups);
  }
  return std::make_unique<AllToAllDispatcher>(config, groups);
}

}  // namespace muster
