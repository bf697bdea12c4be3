// Who sends how many token rows to whom, and in which order they lie (reference 14.5). Pure.
//
// Expert-parallel rank s owns experts [s L, (s + 1) L), L = num_experts / ep_size. A rank's rows
// lie expert by expert, so they are sent as they lie. What has arrived lies in chunks, one for each
// source and local expert, by (etp rank, ep rank) of the source, then by expert; the experts want
// it the other way round.
#pragma once

#include <cstdint>
#include <vector>

namespace muster {

struct ExpertGrid {
  int64_t num_experts = 0;  // of the whole layer
  int64_t ep_rank = 0, ep_size = 1;
  int64_t etp_rank = 0, etp_size = 1;

  int64_t num_local_experts() const { return num_experts / ep_size; }
  int64_t first_local_expert() const { return ep_rank * num_local_experts(); }
  int64_t num_ranks() const { return ep_size * etp_size; }
};

struct DispatchPlan {
  std::vector<int64_t> input_splits;   // rows to each ep rank
  std::vector<int64_t> output_splits;  // rows from each ep rank
  // Rows that each etp rank brings to the gather over etp: the sum of its own output splits.
  std::vector<int64_t> gathered_splits;
  std::vector<int64_t> rows_per_expert;  // by local expert, of all sources
  std::vector<int64_t> chunk_rows;       // (etp, ep, L), as they have arrived
  // The chunk that comes i-th for the experts, and where the i-th arrived chunk comes.
  std::vector<int64_t> chunk_order, inverse_chunk_order;  // (L, etp, ep); (etp, ep, L)
};

// counts (ep, etp, num_experts): rows of each rank for each expert, in tp_ep's order of ranks.
DispatchPlan PlanDispatch(const ExpertGrid& grid, const std::vector<int64_t>& counts);

}  // namespace muster
