#include "worker/parallel/flat_ops.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "gtest/gtest.h"

namespace muster {
namespace {

// Values without a generator: sin of the index, some exact zeros.
at::Tensor Values(int64_t n, at::ScalarType dtype) {
  at::Tensor x = at::arange(n, at::kDouble).sin();
  x.masked_fill_(at::arange(n).remainder(7).eq(3), 0.0);
  return x.to(dtype);
}

TEST(FlatOpsTest, EqualAtOpsForEveryTypeAndSize) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (int64_t n : {0, 1, 15, 16, 33, 32768, 70001}) {
      SCOPED_TRACE(testing::Message() << at::toString(dtype) << " " << n);
      at::Tensor x = Values(n, dtype);
      const double expected = x.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(SumOfSquares(x), expected, 1e-12 * expected);
      EXPECT_NEAR(SumOfSquares(x, 0.5), 0.25 * expected, 1e-12 * expected);
      EXPECT_EQ(CountZeros(x), x.eq(0).sum().item<int64_t>());
      at::Tensor scaled = x.clone();
      EXPECT_NEAR(ScaleAndSumOfSquares(scaled, 0.25), expected, 1e-12 * expected);
      EXPECT_TRUE(at::equal(scaled, x * 0.25));
    }
  }
}

TEST(FlatOpsTest, ThreadsDoNotChangeABit) {
  const at::Tensor x = Values(300'001, at::kFloat);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = SumOfSquares(x);
  at::set_num_threads(3);
  const double three = SumOfSquares(x);
  at::set_num_threads(before);
  EXPECT_EQ(one, three);
}

TEST(FlatOpsTest, NanAndInfShow) {
  at::Tensor x = Values(100'000, at::kFloat);
  x[77'777] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares(x)));
  x[77'777] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(SumOfSquares(x)));
  x[77'777] = std::numeric_limits<float>::max();  // its square overflows fp32, not fp64
  EXPECT_TRUE(std::isfinite(SumOfSquares(x)));
}

}  // namespace
}  // namespace muster
