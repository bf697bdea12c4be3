#include "worker/parallel/owned_shard.h"

namespace muster {

std::vector<OwnedShard> WholeShards(const std::vector<ParameterPtr>& params) {
  std::vector<OwnedShard> shards;
  shards.reserve(params.size());
  for (const ParameterPtr& p : params) {
    shards.push_back({.parameter = p,
                      .in_param = {0, p->data.numel()},
                      .data = p->data.detach(),
                      .grad = p->main_grad});
  }
  return shards;
}

}  // namespace muster
