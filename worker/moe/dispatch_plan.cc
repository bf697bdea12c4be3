#include "worker/moe/dispatch_plan.h"

#include <numeric>

#include "common/base/check.h"

namespace muster {

DispatchPlan PlanDispatch(const ExpertGrid& grid, const std::vector<int64_t>& counts) {
  const int64_t ep = grid.ep_size, etp = grid.etp_size, local = grid.num_local_experts();
  MUSTER_CHECK(grid.num_experts % ep == 0);
  MUSTER_CHECK(static_cast<int64_t>(counts.size()) == grid.num_ranks() * grid.num_experts);
  auto rows = [&](int64_t from_ep, int64_t from_etp, int64_t expert) {
    return counts[static_cast<size_t>((from_ep * etp + from_etp) * grid.num_experts + expert)];
  };

  DispatchPlan plan;
  plan.input_splits.assign(ep, 0);
  for (int64_t expert = 0; expert < grid.num_experts; ++expert) {
    plan.input_splits[expert / local] += rows(grid.ep_rank, grid.etp_rank, expert);
  }
  plan.output_splits.assign(ep, 0);
  plan.gathered_splits.assign(etp, 0);
  plan.rows_per_expert.assign(local, 0);
  for (int64_t t = 0; t < etp; ++t) {
    for (int64_t s = 0; s < ep; ++s) {
      for (int64_t e = 0; e < local; ++e) {
        const int64_t chunk = rows(s, t, grid.first_local_expert() + e);
        plan.chunk_rows.push_back(chunk);
        plan.rows_per_expert[e] += chunk;
        plan.gathered_splits[t] += chunk;
        if (t == grid.etp_rank) plan.output_splits[s] += chunk;
      }
    }
  }
  plan.inverse_chunk_order.resize(plan.chunk_rows.size());
  for (int64_t e = 0; e < local; ++e) {
    for (int64_t source = 0; source < ep * etp; ++source) {
      const int64_t chunk = source * local + e;
      plan.inverse_chunk_order[chunk] = static_cast<int64_t>(plan.chunk_order.size());
      plan.chunk_order.push_back(chunk);
    }
  }
  return plan;
}

}  // namespace muster
