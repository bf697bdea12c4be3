#include "worker/optim/newton_schulz.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/worker/optim/optim_test_util.h"
#include "tests/worker/parallel/thread_ranks.h"

namespace muster {
namespace {

TEST(NewtonSchulzTest, IsGoldenG7_2) {
  const at::Tensor square = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2});
  const at::Tensor wide = at::tensor({1.0f, 0.0f, 2.0f, 0.0f, 3.0f, 1.0f}).view({2, 3});
  const NewtonSchulzOptions fp32{.bf16_iteration = false};
  EXPECT_LE(LargestDifference(NewtonSchulz(square, fp32),
                              at::tensor({-0.520873, 0.854186, 0.850385, 0.501870}).view({2, 2})),
            2e-6);
  EXPECT_LE(
      LargestDifference(NewtonSchulz(wide, fp32), at::tensor({0.471802, -0.180458, 0.883450,  //
                                                              -0.060153, 0.964259, 0.201114})
                                                      .view({2, 3})),
      2e-6);
  // The iteration in bf16, as Megatron's default: 8 bits, so 2 units of the last place.
  EXPECT_LE(LargestDifference(NewtonSchulz(square, {}),
                              at::tensor({-0.539062, 0.847656, 0.843750, 0.515625}).view({2, 2})),
            0.008);
}

TEST(NewtonSchulzTest, TallMatrixIsTheTransposeOfTheWideOne) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor wide = Waves({20, 33}, 1, dtype);
    const at::Tensor of_wide = NewtonSchulz(wide, {});
    EXPECT_EQ(of_wide.scalar_type(), dtype);
    const at::Tensor of_tall = NewtonSchulz(wide.t().contiguous(), {});
    EXPECT_TRUE(of_tall.is_contiguous());
    EXPECT_TRUE(at::equal(of_wide, of_tall.t()));
  }
}

TEST(NewtonSchulzTest, SingularValuesComeNearOne) {
  const at::Tensor d = Waves({24, 40}, 2, at::kDouble);
  const at::Tensor before = at::linalg_svdvals(d) / d.norm();
  EXPECT_LT(before.min().item<double>(), 0.1);
  const at::Tensor after = at::linalg_svdvals(NewtonSchulz(d, {}));
  EXPECT_GT(after.min().item<double>(), 0.7);
  EXPECT_LT(after.max().item<double>(), 1.3);
}

TEST(NewtonSchulzTest, CoefficientsRepeatFromTheFirst) {
  // Of a 1x1 matrix the iteration is x <- a x + b x^3 + c x^5, from x = 1.
  const at::Tensor one = at::ones({1, 1}, at::kDouble);
  auto poly = [](double x, double a, double b, double c) {
    return a * x + b * x * x * x + c * x * x * x * x * x;
  };
  double x = 1;
  for (int i = 0; i < 3; ++i) x = poly(x, 3.4445, -4.7750, 2.0315);
  EXPECT_NEAR(NewtonSchulz(
                  one, {.num_steps = 3, .coefficients = NewtonSchulzOptions::Coefficients::kSimple})
                  .item<double>(),
              x, 1e-13);
  const double five = NewtonSchulz(one, {.num_steps = 5}).item<double>();
  EXPECT_NEAR(NewtonSchulz(one, {.num_steps = 6}).item<double>(),
              poly(five, 4.0848, -6.8946, 2.9270), 1e-13);
}

TEST(NewtonSchulzTest, ZeroStaysZero) {
  EXPECT_TRUE(at::equal(NewtonSchulz(at::zeros({3, 4}), {}), at::zeros({3, 4})));
}

TEST(NewtonSchulzTest, SplitColumnsEqualTheWhole) {
  at::set_num_threads(1);
  // Wide, and tall as the transposed shard of a weight that is split by rows.
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6, 16}, {20, 8}}) {
    const at::Tensor d = Waves(shape, 3, at::kDouble);
    const at::Tensor whole = NewtonSchulz(d, {});
    RunRanks(4, [&](CommunicatorPtr world) -> absl::Status {
      const int64_t cols = shape[1] / 4;
      const at::Tensor mine = d.narrow(1, world->rank() * cols, cols).contiguous();
      ASSIGN_OR_RETURN(const at::Tensor o, NewtonSchulzSplit(mine, {}, *world));
      EXPECT_LE(LargestDifference(o, whole.narrow(1, world->rank() * cols, cols)), 1e-12);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace muster
