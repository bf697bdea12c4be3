#include "worker/moe/permute.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "common/base/check.h"
#include "worker/moe/permute_kernels.h"

namespace muster {
namespace {

at::Tensor Indices(int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().dtype(at::kLong));
}

int64_t RowBytes(const at::Tensor& rows) {
  return c10::multiply_integers(rows.sizes().slice(1)) * static_cast<int64_t>(rows.element_size());
}

at::Tensor RowsLike(int64_t num_rows, const at::Tensor& rows) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = num_rows;
  return at::empty(sizes, rows.options());
}

int64_t Grain(int64_t row_bytes) {
  constexpr int64_t kGrainBytes = 1 << 17;  // less is not worth a thread
  return kGrainBytes / std::max<int64_t>(row_bytes, 1) + 1;
}

// body(tokens) for parts of the tokens.
template <class Body>
void ForTokens(const RowOrder& order, int64_t row_bytes, const Body& body) {
  const auto* first_row = order.first_row.const_data_ptr<int64_t>();
  const auto* rows_of_token = order.rows_of_token.const_data_ptr<int64_t>();
  at::parallel_for(0, order.num_tokens, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    body(kernels::TokenRows{first_row, rows_of_token, begin, end});
  });
}

RowOrderPtr OrderRowsOnCpu(const at::Tensor& map, const ExpertRange& range) {
  const int64_t tokens = map.size(0), experts = map.size(1);
  const bool* chosen = map.const_data_ptr<bool>();
  RowOrder order{.num_tokens = tokens, .num_columns = experts};
  order.rows_per_expert.assign(range.count, 0);
  order.first_row = Indices(tokens + 1, map);
  int64_t* const first = order.first_row.mutable_data_ptr<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    first[t] = order.num_rows;
    const bool* row = chosen + t * experts + range.begin;
    for (int64_t e = 0; e < range.count; ++e) {
      order.rows_per_expert[e] += row[e];
      order.num_rows += row[e];
    }
  }
  first[tokens] = order.num_rows;

  order.token = Indices(order.num_rows, map);
  order.cell = Indices(order.num_rows, map);
  order.rows_of_token = Indices(order.num_rows, map);
  int64_t* const token = order.token.mutable_data_ptr<int64_t>();
  int64_t* const cell = order.cell.mutable_data_ptr<int64_t>();
  int64_t* of_token = order.rows_of_token.mutable_data_ptr<int64_t>();
  std::vector<int64_t> next(range.count, 0);  // the expert's next row
  std::exclusive_scan(order.rows_per_expert.begin(), order.rows_per_expert.end(), next.begin(),
                      int64_t{0});
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < range.count; ++e) {
      const int64_t at = t * experts + range.begin + e;
      if (!chosen[at]) continue;
      const int64_t row = next[e]++;
      token[row] = t;
      cell[row] = at;
      *of_token++ = row;
    }
  }
  return std::make_shared<RowOrder>(std::move(order));
}

at::Tensor PermuteRows(const at::Tensor& x, const RowOrder& order) {
  if (!order.first_row.defined()) return x.index_select(0, order.token);
  const at::Tensor from = x.contiguous(), rows = RowsLike(order.num_rows, x);
  const int64_t row_bytes = RowBytes(from);
  ForTokens(order, row_bytes, [&](const kernels::TokenRows& tokens) {
    kernels::SpreadRows(from.const_data_ptr(), rows.mutable_data_ptr(), row_bytes, tokens);
  });
  return rows;
}

at::Tensor SumRows(const at::Tensor& rows, const RowOrder& order) {
  if (!order.first_row.defined()) {
    // Expert after expert: no token occurs twice in one of them, so that the order of the sum is
    // fixed.
    const at::Tensor sum = at::zeros({order.num_tokens, rows.size(1)}, rows.options());
    int64_t begin = 0;
    for (const int64_t count : order.rows_per_expert) {
      if (count == 0) continue;
      sum.index_add_(0, order.token.narrow(0, begin, count), rows.narrow(0, begin, count));
      begin += count;
    }
    MUSTER_CHECK(begin == order.num_rows);
    return sum;
  }
  const at::Tensor from = rows.contiguous(), sum = RowsLike(order.num_tokens, rows);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, rows.scalar_type(), "muster_unpermute", [&] {
        const auto* data = from.const_data_ptr<scalar_t>();
        auto* out = sum.mutable_data_ptr<scalar_t>();
        ForTokens(order, RowBytes(from), [&](const kernels::TokenRows& tokens) {
          kernels::SumRows(data, out, from.size(1), tokens);
        });
      });
  return sum;
}

at::Tensor SortChunks(const at::Tensor& tensor, const std::vector<int64_t>& chunk_rows,
                      const std::vector<int64_t>& order) {
  std::vector<int64_t> begins(chunk_rows.size());
  std::exclusive_scan(chunk_rows.begin(), chunk_rows.end(), begins.begin(), int64_t{0});
  if (!tensor.is_cpu()) {
    std::vector<at::Tensor> chunks;
    for (const int64_t chunk : order) {
      chunks.push_back(tensor.narrow(0, begins[chunk], chunk_rows[chunk]));
    }
    return at::cat(chunks);
  }
  std::vector<kernels::Run> runs;
  int64_t to = 0;
  for (const int64_t chunk : order) {
    runs.push_back({.from = begins[chunk], .to = to, .rows = chunk_rows[chunk]});
    to += chunk_rows[chunk];
  }
  MUSTER_CHECK_MSG(to == tensor.size(0), "the chunks are the whole tensor");
  const at::Tensor from = tensor.contiguous(), sorted = RowsLike(to, tensor);
  const int64_t row_bytes = RowBytes(from);
  at::parallel_for(0, to, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    kernels::CopyRuns(from.const_data_ptr(), sorted.mutable_data_ptr(), row_bytes, runs, begin,
                      end);
  });
  return sorted;
}

TensorList SortEach(const TensorList& tensors, const std::vector<int64_t>& chunk_rows,
                    const std::vector<int64_t>& order) {
  TensorList sorted;
  for (const at::Tensor& tensor : tensors) {
    sorted.push_back(tensor.defined() ? SortChunks(tensor, chunk_rows, order) : at::Tensor());
  }
  return sorted;
}

}  // namespace

// Without a read of the device: each chosen cell goes to its rank among the chosen, the others to a
// place behind the last.
RowOrderPtr OrderRowsOnDevice(const at::Tensor& map, const ExpertRange& range, int64_t num_rows) {
  const int64_t tokens = map.size(0), experts = map.size(1);
  RowOrder order{.num_tokens = tokens, .num_columns = experts, .num_rows = num_rows};
  const at::Tensor by_expert =
      map.narrow(1, range.begin, range.count).t().contiguous().view(-1);  // (count * T)
  const at::Tensor place =
      by_expert.to(at::kLong).cumsum(0).sub_(1).masked_fill_(by_expert.logical_not(), num_rows);
  const at::Tensor index = at::arange(range.count * tokens, place.options());
  const at::Tensor chosen =
      at::zeros({num_rows + 1}, place.options()).scatter_(0, place, index).narrow(0, 0, num_rows);
  const at::Tensor expert = chosen.floor_divide(tokens).add_(range.begin);
  order.token = chosen.remainder(tokens);
  order.cell = order.token.mul(experts).add_(expert);
  return std::make_shared<RowOrder>(std::move(order));
}

RowOrderPtr OrderRows(const at::Tensor& map, const ExpertRange& range,
                      std::optional<int64_t> num_rows) {
  MUSTER_CHECK(map.dim() == 2 && map.scalar_type() == at::kBool);
  if (map.is_cpu()) {
    RowOrderPtr order = OrderRowsOnCpu(map.contiguous(), range);
    MUSTER_CHECK_MSG(!num_rows.has_value() || *num_rows == order->num_rows,
                     "the routing map has another number of rows than it should");
    return order;
  }
  MUSTER_CHECK_MSG(num_rows.has_value(), "on a GPU the number of rows must be known");
  return OrderRowsOnDevice(map, range, *num_rows);
}

TensorList PermuteOp(const at::Tensor& x, const at::Tensor& probs, const RowOrderPtr& order) {
  MUSTER_CHECK(x.size(0) == order->num_tokens && probs.size(1) == order->num_columns);
  TensorList permuted;
  {
    OpForward forward;
    permuted = {PermuteRows(x, *order), probs.reshape({-1}).index_select(0, order->cell)};
  }
  return RecordOp(
      std::move(permuted), {x, probs}, [order](const TensorList& grads, const NeedsGrad& needs) {
        TensorList input_grads(2);
        if (needs[0] && grads[0].defined()) input_grads[0] = SumRows(grads[0], *order);
        if (needs[1] && grads[1].defined()) {
          input_grads[1] = at::zeros({order->num_tokens, order->num_columns}, grads[1].options());
          input_grads[1].view(-1).scatter_(0, order->cell, grads[1]);
        }
        return input_grads;
      });
}

at::Tensor UnpermuteOp(const at::Tensor& rows, const RowOrderPtr& order) {
  MUSTER_CHECK(rows.size(0) == order->num_rows);
  at::Tensor sum;
  {
    OpForward forward;
    sum = SumRows(rows, *order);
  }
  return RecordOp(std::move(sum), {rows}, [order](const TensorList& grads, const NeedsGrad&) {
    return TensorList{grads[0].defined() ? PermuteRows(grads[0], *order) : at::Tensor()};
  });
}

TensorList SortChunksOp(const TensorList& tensors, const std::vector<int64_t>& chunk_rows,
                        const std::vector<int64_t>& order, const std::vector<int64_t>& inverse) {
  TensorList sorted;
  {
    OpForward forward;
    sorted = SortEach(tensors, chunk_rows, order);
  }
  std::vector<int64_t> sorted_rows;
  for (const int64_t chunk : order) sorted_rows.push_back(chunk_rows[chunk]);
  return RecordOp(std::move(sorted), tensors,
                  [sorted_rows, inverse](const TensorList& grads, const NeedsGrad&) {
                    return SortEach(grads, sorted_rows, inverse);
                  });
}

}  // namespace muster
