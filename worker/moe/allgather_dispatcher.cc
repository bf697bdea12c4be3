#include "worker/moe/allgather_dispatcher.h"

#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "common/base/check.h"
#include "worker/moe/dispatch_sizes.h"
#include "worker/moe/permute.h"
#include "worker/moe/row_exchange.h"

namespace muster {
namespace {

struct AllGatherRoute : DispatchRoute {
  RowOrderPtr order;
  std::vector<int64_t> tokens;  // of each rank
  at::ScalarType probs_dtype = at::kFloat;
};

}  // namespace

AllGatherDispatcher::AllGatherDispatcher(const MoeConfig& config, const ExpertParallel& groups)
    : config_(config), groups_(groups), grid_(ExpertGridOf(config, groups)) {
  MUSTER_CHECK(groups.tp_ep != nullptr && groups.tp_ep->size() == grid_.num_ranks());
}

Dispatched AllGatherDispatcher::DispatchRows(const at::Tensor& x, const RoutedTokens& routed,
                                             const Meanwhile& meanwhile) {
  Communicator& group = *groups_.tp_ep;
  auto route = std::make_shared<AllGatherRoute>();
  route->tokens.assign(group.size(), x.size(0));
  route->probs_dtype = routed.probs.scalar_type();

  const at::Tensor own_map = routed.map.contiguous();
  const at::Tensor map =
      at::empty({x.size(0) * group.size(), routed.map.size(1)}, own_map.options());
  const WorkPtr map_work = group.AllGather(map, own_map);
  Exchange exchange({routed.probs, x}, GatherRows(group, route->tokens),
                    ReduceScatterRows(group, route->tokens));
  if (meanwhile) meanwhile();
  WaitOrThrow(map_work);
  const ExpertRange experts{grid_.first_local_expert(), grid_.num_local_experts()};
  std::vector<int64_t> rows_per_expert;
  std::optional<int64_t> num_rows;
  if (config_.pad_to_capacity) {
    rows_per_expert.assign(experts.count, group.size() * PaddedRows(config_, x.size(0)));
  } else if (!map.is_cpu()) {
    rows_per_expert = ToHost(map.narrow(1, experts.begin, experts.count).sum(0));
    WaitOrThrow(map_work);  // the first wait ordered streams only: an aborted map is none
  }
  if (!rows_per_expert.empty()) num_rows = Total(rows_per_expert);
  route->order = OrderRows(map, experts, num_rows);
  if (rows_per_expert.empty()) rows_per_expert = route->order->rows_per_expert;
  route->order->rows_per_expert = rows_per_expert;

  const TensorList gathered = exchange.Finish();
  const TensorList rows = PermuteOp(gathered[1], gathered[0], route->order);
  return {.tokens = rows[0],
          .probs = rows[1],
          .rows_per_expert = std::move(rows_per_expert),
          .route = std::move(route)};
}

at::Tensor AllGatherDispatcher::CombineRows(const Dispatched& dispatched, const at::Tensor& outputs,
                                            const Meanwhile& meanwhile) {
  const auto& route = static_cast<const AllGatherRoute&>(*dispatched.route);
  Communicator& group = *groups_.tp_ep;
  Exchange exchange({UnpermuteOp(outputs, route.order)},
                    ReduceScatterRows(group, route.tokens, route.probs_dtype),
                    GatherRows(group, route.tokens), {dispatched.tokens, dispatched.probs});
  if (meanwhile) meanwhile();
  return exchange.Finish()[0];
}

}  // namespace muster
