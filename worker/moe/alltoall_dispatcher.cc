#include "worker/moe/alltoall_dispatcher.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "worker/moe/dispatch_sizes.h"
#include "worker/moe/row_exchange.h"

namespace muster {
namespace {

struct AllToAllRoute : DispatchRoute {
  RowOrderPtr order;
  DispatchPlan plan;
  at::ScalarType probs_dtype = at::kFloat;
};

// One leg of a journey: there, and back for what returns.
struct Leg {
  Departure there, back;
};

// This rank's part of counts (ep, etp, E).
std::vector<int64_t> OwnCounts(const ExpertGrid& grid, const std::vector<int64_t>& counts) {
  const auto begin =
      counts.begin() + (grid.ep_rank * grid.etp_size + grid.etp_rank) * grid.num_experts;
  return {begin, begin + grid.num_experts};
}

// Rows of all ranks for all experts, (ep, etp, E), known or on their way.
class Counts {
 public:
  // What the router fills every expert up to.
  Counts(const ExpertGrid& grid, int64_t rows_per_expert)
      : known_(true), values_(grid.num_ranks() * grid.num_experts, rows_per_expert) {}
  // own (E): this rank's. `group` is null where it is alone.
  Counts(Communicator* group, const at::Tensor& own) : all_(own) {
    if (group == nullptr) return;
    all_ = at::empty({group->size() * own.size(0)}, own.options());
    work_ = group->AllGather(all_, own);
  }
  const std::vector<int64_t>& Wait() {
    if (!known_) {
      if (work_ != nullptr) WaitOrThrow(work_);
      values_ = ToHost(all_);
      // On a GPU the first wait ordered streams only: numbers of an aborted exchange are none.
      if (work_ != nullptr) WaitOrThrow(work_);
      known_ = true;
    }
    return values_;
  }

 private:
  at::Tensor all_;
  WorkPtr work_;
  bool known_ = false;
  std::vector<int64_t> values_;
};

// Runs `tensors` through the legs one by one; `meanwhile` while they are on leg number
// `overlapped`.
TensorList Travel(TensorList tensors, const std::vector<Leg>& legs, size_t overlapped,
                  const TokenDispatcher::Meanwhile& meanwhile, const TensorList& also = {}) {
  if (legs.empty() && meanwhile) meanwhile();
  for (size_t i = 0; i < legs.size(); ++i) {
    Exchange exchange(tensors, legs[i].there, legs[i].back, i == 0 ? also : TensorList());
    if (i == overlapped && meanwhile) meanwhile();
    tensors = exchange.Finish();
  }
  return tensors;
}

bool InOrder(const DispatchPlan& plan) {
  return std::is_sorted(plan.chunk_order.begin(), plan.chunk_order.end());
}

std::vector<int64_t> SortedChunkRows(const DispatchPlan& plan) {
  std::vector<int64_t> rows;
  for (const int64_t chunk : plan.chunk_order) rows.push_back(plan.chunk_rows[chunk]);
  return rows;
}

at::Tensor ToTensor(const std::vector<int64_t>& values) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(const MoeConfig& config, const ExpertParallel& groups)
    : config_(config), groups_(groups), grid_(ExpertGridOf(config, groups)) {}

Dispatched AllToAllDispatcher::DispatchRows(const at::Tensor& x, const RoutedTokens& routed,
                                            const Meanwhile& meanwhile) {
  const ExpertRange experts{0, grid_.num_experts};
  Communicator* const group = grid_.num_ranks() > 1 ? groups_.tp_ep : nullptr;
  auto route = std::make_shared<AllToAllRoute>();
  route->probs_dtype = routed.probs.scalar_type();

  std::optional<Counts> counts;
  if (config_.pad_to_capacity) {
    const int64_t rows = PaddedRows(config_, x.size(0));
    counts.emplace(grid_, rows);
    route->order = OrderRows(routed.map, experts, rows * grid_.num_experts);
  } else if (routed.map.is_cpu()) {
    route->order = OrderRows(routed.map, experts);
    counts.emplace(group, ToTensor(route->order->rows_per_expert));
  } else {
    counts.emplace(group, routed.map.sum(0));
    const bool drops = config_.capacity_factor > 0;
    route->order =
        OrderRows(routed.map, experts,
                  drops ? Total(OwnCounts(grid_, counts->Wait())) : x.size(0) * config_.topk);
  }
  TensorList rows = PermuteOp(x, routed.probs, route->order);
  route->plan = PlanDispatch(grid_, counts->Wait());
  route->order->rows_per_expert = OwnCounts(grid_, counts->Wait());

  const DispatchPlan& plan = route->plan;
  std::vector<Leg> legs;
  if (grid_.ep_size > 1) {
    legs.push_back({AllToAllRows(*groups_.ep, plan.output_splits, plan.input_splits),
                    AllToAllRows(*groups_.ep, plan.input_splits, plan.output_splits)});
  }
  if (grid_.etp_size > 1) {
    legs.push_back({GatherRows(*groups_.etp, plan.gathered_splits),
                    ReduceScatterRows(*groups_.etp, plan.gathered_splits)});
  }
  rows = Travel(std::move(rows), legs, 0, meanwhile);
  if (!InOrder(plan)) {
    rows = SortChunksOp(rows, plan.chunk_rows, plan.chunk_order, plan.inverse_chunk_order);
  }
  return {.tokens = rows[0],
          .probs = rows[1],
          .rows_per_expert = plan.rows_per_expert,
          .route = std::move(route)};
}

at::Tensor AllToAllDispatcher::CombineRows(const Dispatched& dispatched, const at::Tensor& outputs,
                                           const Meanwhile& meanwhile) {
  const auto& route = static_cast<const AllToAllRoute&>(*dispatched.route);
  const DispatchPlan& plan = route.plan;
  TensorList rows{outputs};
  if (!InOrder(plan)) {
    rows = SortChunksOp(rows, SortedChunkRows(plan), plan.inverse_chunk_order, plan.chunk_order);
  }
  std::vector<Leg> legs;
  if (grid_.etp_size > 1) {
    legs.push_back({ReduceScatterRows(*groups_.etp, plan.gathered_splits, route.probs_dtype),
                    GatherRows(*groups_.etp, plan.gathered_splits)});
  }
  if (grid_.ep_size > 1) {
    legs.push_back({AllToAllRows(*groups_.ep, plan.input_splits, plan.output_splits),
                    AllToAllRows(*groups_.ep, plan.output_splits, plan.input_splits)});
  }
  rows = Travel(std::move(rows), legs, legs.size() - 1, meanwhile,
                {dispatched.tokens, dispatched.probs});
  return UnpermuteOp(rows[0], route.order);
}

}  // namespace muster
