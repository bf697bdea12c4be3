#include "worker/moe/router_choice.h"

#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "common/base/check.h"

namespace muster {
namespace {

// Insertion into k kept entries: most columns are not among them and cost one comparison.
template <typename T>
void TopkOfRow(const T* row, int64_t n, int64_t k, T* values, int64_t* columns) {
  int64_t kept = 0;
  for (int64_t column = 0; column < n; ++column) {
    const T value = row[column];
    if (kept == k && !(value > values[k - 1])) continue;
    int64_t place = kept < k ? kept++ : k - 1;
    // Behind its equals, which have lower numbers.
    for (; place > 0 && value > values[place - 1]; --place) {
      values[place] = values[place - 1];
      columns[place] = columns[place - 1];
    }
    values[place] = value;
    columns[place] = column;
  }
}

at::Tensor TopkColumnsOnCpu(const at::Tensor& scores, int64_t k) {
  const at::Tensor rows = scores.contiguous();
  const int64_t n = rows.size(1);
  const at::Tensor columns = at::empty({rows.size(0), k}, rows.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "TopkColumns", [&] {
    const scalar_t* const in = rows.const_data_ptr<scalar_t>();
    int64_t* const out = columns.mutable_data_ptr<int64_t>();
    at::parallel_for(0, rows.size(0), at::internal::GRAIN_SIZE / n + 1,
                     [&](int64_t begin, int64_t end) {
                       std::vector<scalar_t> values(static_cast<size_t>(k));
                       for (int64_t row = begin; row < end; ++row)
                         TopkOfRow(in + row * n, n, k, values.data(), out + row * k);
                     });
  });
  return columns;
}

}  // namespace

at::Tensor TopkColumns(const at::Tensor& scores, int64_t k) {
  MUSTER_CHECK(scores.dim() == 2 && k >= 1 && k <= scores.size(1));
  if (scores.is_cpu()) return TopkColumnsOnCpu(scores, k);
  const at::Tensor order =
      std::get<1>(at::sort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true));
  return order.narrow(1, 0, k).contiguous();
}

at::Tensor GroupLimitedTopk(const at::Tensor& scores, int64_t k, int64_t num_groups,
                            int64_t group_topk) {
  const int64_t rows = scores.size(0), experts = scores.size(1);
  const int64_t width = experts / num_groups;
  MUSTER_CHECK(width * num_groups == experts && k / group_topk >= 1 && k <= group_topk * width);
  const at::Tensor blocks = scores.reshape({rows * num_groups, width});
  const at::Tensor best = at::gather(blocks, 1, TopkColumns(blocks, k / group_topk));
  const at::Tensor groups = TopkColumns(best.sum(1).view({rows, num_groups}), group_topk);

  const at::Tensor left_out = at::ones({rows, num_groups, 1}, scores.options().dtype(at::kBool))
                                  .scatter_(1, groups.unsqueeze(2), 0);
  const at::Tensor masked = scores.view({rows, num_groups, width})
                                .masked_fill(left_out, -std::numeric_limits<double>::infinity());
  return TopkColumns(masked.view({rows, experts}), k);
}

at::Tensor SinkhornNormalized(const at::Tensor& logits) {
  constexpr double kEpsilon = 1e-8, kTolerance = 1e-4;
  const at::Tensor weights = at::exp(logits), transposed = weights.t();
  const double row_sum = 1.0 / static_cast<double>(logits.size(0));
  const double column_sum = 1.0 / static_cast<double>(logits.size(1));
  at::Tensor of_rows, of_columns = at::ones({logits.size(1)}, logits.options());
  double change = std::numeric_limits<double>::infinity();
  while (change > kTolerance) {  // NaN ends it, too
    of_rows = at::mv(weights, of_columns).add_(kEpsilon).reciprocal_().mul_(row_sum);
    const at::Tensor next =
        at::mv(transposed, of_rows).add_(kEpsilon).reciprocal_().mul_(column_sum);
    change = (next - of_columns).abs_().mean().item<double>();
    of_columns = next;
  }
  return weights * of_columns * of_rows.unsqueeze(1);
}

}  // namespace muster
