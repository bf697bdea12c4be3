#include "worker/moe/permute.h"

#include <functional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dispatcher_support.h"

namespace muster {
namespace {

using testing::ElementsAre;

std::vector<int64_t> Values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

// Tokens 0 -> experts 1, 0; 1 -> 2, 3; 2 -> none; 3 -> 0, 2, 3.
at::Tensor SmallMap() {
  return at::tensor({1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1}).view({4, 4}).to(at::kBool);
}

TEST(PermuteTest, RowsLieByExpertThenByToken) {
  const RowOrderPtr order = OrderRows(SmallMap(), {0, 4});
  EXPECT_THAT(order->rows_per_expert, ElementsAre(2, 1, 2, 2));
  EXPECT_THAT(Values(order->token), ElementsAre(0, 3, 0, 1, 3, 1, 3));
  EXPECT_THAT(Values(order->cell), ElementsAre(0, 12, 1, 6, 14, 7, 15));
  EXPECT_THAT(Values(order->first_row), ElementsAre(0, 2, 4, 4, 7));
  EXPECT_THAT(Values(order->rows_of_token), ElementsAre(0, 2, 3, 5, 1, 4, 6));
}

TEST(PermuteTest, ARangeOfExpertsTakesOnlyTheirRows) {
  const RowOrderPtr order = OrderRows(SmallMap(), {1, 2});
  EXPECT_THAT(order->rows_per_expert, ElementsAre(1, 2));
  EXPECT_THAT(Values(order->token), ElementsAre(0, 1, 3));
  EXPECT_THAT(Values(order->cell), ElementsAre(1, 6, 14));
}

TEST(PermuteTest, NoTokensAndNoRowsAreFine) {
  const RowOrderPtr none = OrderRows(at::zeros({0, 4}, at::kBool), {0, 4});
  EXPECT_EQ(PermuteOp(at::ones({0, 3}), at::ones({0, 4}), none)[0].sizes(),
            at::IntArrayRef({0, 3}));
  const RowOrderPtr idle = OrderRows(at::zeros({2, 4}, at::kBool), {0, 4});
  const TensorList rows = PermuteOp(at::ones({2, 3}), at::ones({2, 4}), idle);
  EXPECT_EQ(rows[0].sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(MaxDifference(UnpermuteOp(rows[0], idle), at::zeros({2, 3})), 0);
}

// Largest |analytic - central difference| over the leaves' elements.
double GradientError(const TensorList& leaves, const std::function<at::Tensor()>& output) {
  const at::Tensor weights = RandomLeaf(output().sizes(), 99).detach();
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  (output() * weights).sum().backward();
  at::NoGradGuard no_grad;
  double worst = 0;
  for (const at::Tensor& leaf : leaves) {
    double* const data = leaf.mutable_data_ptr<double>();
    const at::Tensor grad = leaf.grad().contiguous();
    for (int64_t i = 0; i < leaf.numel(); ++i) {
      const double before = data[i];
      double side[2];
      for (int s = 0; s < 2; ++s) {
        data[i] = before + (s == 0 ? 1e-5 : -1e-5);
        side[s] = (output() * weights).sum().item<double>();
      }
      data[i] = before;
      const double numeric = (side[0] - side[1]) / 2e-5;
      worst = std::max(worst, std::abs(numeric - grad.const_data_ptr<double>()[i]));
    }
  }
  return worst;
}

TEST(PermuteTest, GradientsAreThoseOfFiniteDifferences) {
  const RowOrderPtr order = OrderRows(SmallMap(), {0, 4});
  const at::Tensor x = RandomLeaf({4, 3}, 1), probs = RandomLeaf({4, 4}, 2);
  EXPECT_LE(GradientError({x, probs},
                          [&] {
                            const TensorList rows = PermuteOp(x, probs, order);
                            return rows[0].tanh() * rows[1].unsqueeze(1);
                          }),
            1e-9);
  const at::Tensor rows = RandomLeaf({7, 3}, 3);
  EXPECT_LE(GradientError({rows}, [&] { return UnpermuteOp(rows, order).tanh(); }), 1e-9);
}

TEST(PermuteTest, TheDevicesWayGivesTheSame) {
  const at::Tensor map = RandomLeaf({50, 8}, 8).detach() > 0.3;
  for (const ExpertRange range : {ExpertRange{0, 8}, {2, 3}, {7, 1}}) {
    const RowOrderPtr host = OrderRows(map, range);
    const RowOrderPtr device = OrderRowsOnDevice(map, range, host->num_rows);
    EXPECT_EQ(Values(device->token), Values(host->token));
    EXPECT_EQ(Values(device->cell), Values(host->cell));
    device->rows_per_expert = host->rows_per_expert;
    const at::Tensor weights = RandomLeaf({50, 3}, 9).detach();
    TensorList results[2];
    for (const RowOrderPtr& order : {host, device}) {
      const at::Tensor x = RandomLeaf({50, 3}, 10), probs = RandomLeaf({50, 8}, 11);
      const TensorList rows = PermuteOp(x, probs, order);
      const at::Tensor sum = UnpermuteOp(rows[0].tanh() * rows[1].unsqueeze(1), order);
      (sum * weights).sum().backward();
      results[order == device] = {rows[0], rows[1], sum, x.grad(), probs.grad()};
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_LE(MaxDifference(results[0][i], results[1][i]), 1e-15) << i;
    }
  }
}

TEST(PermuteTest, OneOfTheGradientsMayBeMissing) {
  const RowOrderPtr order = OrderRows(SmallMap(), {0, 4});
  const at::Tensor x = RandomLeaf({4, 3}, 1), probs = RandomLeaf({4, 4}, 2);
  PermuteOp(x, probs, order)[1].sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(MaxDifference(probs.grad(), SmallMap().to(at::kDouble)), 0);
}

TEST(PermuteTest, ChunksAreSortedAndTheirGradientsGoBack) {
  const at::Tensor rows = RandomLeaf({6, 2}, 4), weights = RandomLeaf({6}, 5);
  const std::vector<int64_t> chunk_rows{3, 0, 1, 2}, order{2, 0, 3, 1}, inverse{1, 3, 0, 2};
  const TensorList sorted = SortChunksOp({rows, weights}, chunk_rows, order, inverse);
  const at::Tensor index = at::tensor({3, 0, 1, 2, 4, 5}, at::kLong);
  EXPECT_EQ(MaxDifference(sorted[0], rows.index_select(0, index)), 0);
  EXPECT_EQ(MaxDifference(sorted[1], weights.index_select(0, index)), 0);
  EXPECT_LE(GradientError(
                {rows, weights},
                [&] {
                  const TensorList s = SortChunksOp({rows, weights}, chunk_rows, order, inverse);
                  return s[0].tanh() * s[1].unsqueeze(1);
                }),
            1e-9);
}

TEST(PermuteTest, SumsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  const at::Tensor map = RandomLeaf({500, 8}, 6).detach() > 0;
  const RowOrderPtr order = OrderRows(map, {0, 8});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor rows = RandomLeaf({order->num_rows, 300}, 7, dtype).detach();
    at::set_num_threads(1);
    const at::Tensor sum = UnpermuteOp(rows, order);
    // The order of addition is that of the experts.
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor expected = at::zeros({500, 300}, wide);
    int64_t begin = 0;
    for (const int64_t count : order->rows_per_expert) {
      expected.index_add_(0, order->token.narrow(0, begin, count),
                          rows.narrow(0, begin, count).to(wide));
      begin += count;
    }
    EXPECT_TRUE(at::equal(sum, expected.to(dtype)));
    const TensorList alone = PermuteOp(sum, at::ones({500, 8}), order);
    for (const int count : {2, 3, 8}) {
      at::set_num_threads(count);
      EXPECT_TRUE(at::equal(UnpermuteOp(rows, order), sum));
      EXPECT_TRUE(at::equal(PermuteOp(sum, at::ones({500, 8}), order)[0], alone[0]));
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace muster
