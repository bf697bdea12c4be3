// Token rows put into the order of their experts and back (Megatron's moe_utils.permute and
// unpermute), in one pass over memory each. Rows lie by expert, those of one expert by token.
//
// On the CPU a token's rows are added in the order of its experts, in fp32 (fp64 for fp64), and
// rounded once, whatever the number of threads. Megatron without fusion rounds after each addition
// in the rows' type: with two experts a token that is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/ops/autograd_op.h"

namespace muster {

// Which token each row is of. Indices are int64, on the map's device.
struct RowOrder {
  int64_t num_tokens = 0;   // T
  int64_t num_columns = 0;  // experts in the map: E
  int64_t num_rows = 0;     // R
  at::Tensor token;         // (R)
  at::Tensor cell;          // (R): where the row's weight lies in the flat (T, E)
  // By expert of the range. On a GPU the caller sets it before rows are added.
  std::vector<int64_t> rows_per_expert;
  // Undefined on a GPU: token t has the rows rows_of_token[first_row[t], first_row[t + 1]).
  at::Tensor first_row, rows_of_token;  // (T + 1), (R)
};
using RowOrderPtr = std::shared_ptr<RowOrder>;

struct ExpertRange {
  int64_t begin = 0, count = 0;
};

// map (T, E) bool: the rows of the experts in `range`. On a GPU `num_rows` must be given, which
// spares a read of the device.
RowOrderPtr OrderRows(const at::Tensor& map, const ExpertRange& range,
                      std::optional<int64_t> num_rows = std::nullopt);

// What OrderRows does on a GPU, in tensor operations that work everywhere.
RowOrderPtr OrderRowsOnDevice(const at::Tensor& map, const ExpertRange& range, int64_t num_rows);

// x (T, H), probs (T, E) -> rows (R, H), weights (R).
TensorList PermuteOp(const at::Tensor& x, const at::Tensor& probs, const RowOrderPtr& order);
// rows (R, H) -> (T, H): each token's sum; zero for a token without rows.
at::Tensor UnpermuteOp(const at::Tensor& rows, const RowOrderPtr& order);

// Tensors (R, ...) that consist of runs of chunk_rows[i] rows: run order[i] comes i-th. `inverse`
// is the inverse of `order`.
TensorList SortChunksOp(const TensorList& tensors, const std::vector<int64_t>& chunk_rows,
                        const std::vector<int64_t>& order, const std::vector<int64_t>& inverse);

}  // namespace muster
