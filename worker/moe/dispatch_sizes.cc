#include "worker/moe/dispatch_sizes.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"
#include "worker/moe/token_counts.h"

namespace muster {

ExpertGrid ExpertGridOf(const MoeConfig& config, const ExpertParallel& groups) {
  const ExpertGrid grid{.num_experts = config.num_experts,
                        .ep_rank = groups.ep_rank,
                        .ep_size = groups.ep_size,
                        .etp_rank = groups.etp_rank,
                        .etp_size = groups.etp_size};
  MUSTER_CHECK(grid.num_experts % grid.ep_size == 0);
  MUSTER_CHECK(grid.ep_size == 1 || groups.ep != nullptr);
  MUSTER_CHECK(grid.etp_size == 1 || groups.etp != nullptr);
  MUSTER_CHECK_MSG(
      grid.num_ranks() == 1 ||
          (groups.tp_ep != nullptr &&
           groups.tp_ep->rank() == grid.ep_rank * grid.etp_size + grid.etp_rank),
      "ranks of tp_ep are numbered by expert-parallel rank, then by expert-tensor-parallel rank");
  return grid;
}

int64_t PaddedRows(const MoeConfig& config, int64_t tokens) {
  return std::min(tokens,
                  ExpertCapacity(tokens, config.topk, config.num_experts, config.capacity_factor));
}

int64_t Total(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

std::vector<int64_t> ToHost(const at::Tensor& counts) {
  const at::Tensor host = counts.cpu().contiguous();
  const int64_t* const values = host.const_data_ptr<int64_t>();
  return {values, values + host.numel()};
}

}  // namespace muster
