// The one-pass kernels against ATen's, in every dtype, with sizes that leave tails; and their
// behaviour at the ends of the number range.

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/model/row_math.h"
#include "worker/model/row_ops.h"

namespace muster {
namespace {

constexpr int64_t kRows = 130, kCols = 37;  // three blocks of rows, two lanes' worth and a tail

// What rounding to the dtype leaves, a few units.
double Tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-13;
    case at::kFloat:
      return 2e-6;
    case at::kHalf:
      return 4e-3;
    default:
      return 3e-2;
  }
}

class RowOpsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor Random(at::IntArrayRef sizes, uint64_t seed) const {
    return (RandomLeaf(sizes, seed).detach() * 3).to(GetParam());
  }
  void ExpectNear(const at::Tensor& got, const at::Tensor& want, double scale = 1) const {
    EXPECT_LE(MaxDifference(got, want), scale * Tolerance(GetParam()));
  }
};

TEST_P(RowOpsTest, GeluAndItsGradient) {
  const at::Tensor x = Random({kRows, kCols}, 1), bias = Random({kCols}, 2);
  const at::Tensor dy = Random({kRows, kCols}, 3);
  const at::Tensor u = x.to(at::kDouble) + bias.to(at::kDouble);
  ExpectNear(row_ops::BiasGelu(x, bias), at::gelu(u), 3);
  const auto d = row_ops::BiasGeluBackward(dy, x, bias, true);
  const at::Tensor want = at::gelu_backward(dy.to(at::kDouble), u);
  ExpectNear(d.dx, want, 3);
  ExpectNear(d.dbias, want.sum(0), 30);
  ExpectNear(row_ops::BiasGelu(x, {}), at::gelu(x.to(at::kDouble)), 3);
}

TEST_P(RowOpsTest, SwigluAndItsGradient) {
  const at::Tensor x = Random({kRows, 2 * kCols}, 1), bias = Random({2 * kCols}, 2);
  const at::Tensor dy = Random({kRows, kCols}, 3);
  const at::Tensor u = x.to(at::kDouble) + bias.to(at::kDouble);
  const at::Tensor a = u.narrow(1, 0, kCols), b = u.narrow(1, kCols, kCols);
  ExpectNear(row_ops::BiasSwiglu(x, bias), at::silu(a) * b, 20);
  const auto d = row_ops::BiasSwigluBackward(dy, x, bias, true);
  const at::Tensor wide = dy.to(at::kDouble);
  const at::Tensor want = at::cat({at::silu_backward(wide * b, a), at::silu(a) * wide}, 1);
  ExpectNear(d.dx, want, 20);
  ExpectNear(d.dbias, want.sum(0), 200);
}

TEST_P(RowOpsTest, CrossEntropyAndItsGradient) {
  const at::Tensor z = Random({kRows, kCols}, 1);
  const at::Tensor labels = at::arange(kRows, at::kLong).remainder(kCols);
  const at::Tensor log_p = at::log_softmax(z.to(at::kDouble), 1);
  const auto out = row_ops::CrossEntropy(z, labels);
  ExpectNear(out.loss, -log_p.gather(1, labels.unsqueeze(1)).squeeze(1), 3);
  const at::Tensor dloss = RandomLeaf({kRows}, 4).detach().to(out.loss.scalar_type());
  at::Tensor want = at::exp(log_p);
  want.scatter_add_(1, labels.unsqueeze(1), -at::ones({kRows, 1}, at::kDouble));
  at::Tensor grad = z.clone();
  row_ops::CrossEntropyBackward(grad, labels, out.lse, dloss);
  ExpectNear(grad, want * dloss.to(at::kDouble).unsqueeze(1));
}

TEST_P(RowOpsTest, LayerNormMatchesAten) {
  const at::Tensor x = Random({kRows, kCols}, 1), dy = Random({kRows, kCols}, 2);
  const at::Tensor weight = Random({kCols}, 3), beta = Random({kCols}, 4);
  const auto out = row_ops::NormForward({.residual = x, .weight = weight, .beta = beta});
  const at::Tensor wide = x.to(at::kDouble), wide_weight = weight.to(at::kDouble);
  const auto want = at::native_layer_norm(wide, {kCols}, wide_weight, beta.to(at::kDouble), 1e-5);
  ExpectNear(out.y, std::get<0>(want), 5);
  const auto d = row_ops::NormBackward(Normalization::kLayerNorm, {.dy = dy,
                                                                   .dx_in = {},
                                                                   .x = x,
                                                                   .mean = out.mean,
                                                                   .rstd = out.rstd,
                                                                   .weight = weight,
                                                                   .want_dbeta = true});
  const auto grads = at::native_layer_norm_backward(
      dy.to(at::kDouble), wide, {kCols}, std::get<1>(want), std::get<2>(want), wide_weight,
      beta.to(at::kDouble), {true, true, true});
  ExpectNear(d.dx, std::get<0>(grads), 5);
  ExpectNear(d.dweight, std::get<1>(grads), 50);
  ExpectNear(d.dbeta, std::get<2>(grads), 50);
}

TEST_P(RowOpsTest, BitsDoNotDependOnTheNumberOfThreads) {
  const at::Tensor x = Random({kRows, kCols}, 1), dy = Random({kRows, kCols}, 2);
  const auto one = row_ops::BiasGeluBackward(dy, x, {}, true);
  at::set_num_threads(3);
  const auto three = row_ops::BiasGeluBackward(dy, x, {}, true);
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(one.dx, three.dx));
  EXPECT_TRUE(at::equal(one.dbias, three.dbias));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RowOpsTest,
                         testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf));

float Cdf(float u) { return kernels::NormalCdf(u, kernels::Exp(-0.5f * u * u)); }

TEST(RowMathTest, ExpAndNormalCdfHoldTheirBounds) {
  double exp_error = 0, cdf_error = 0;
  for (int i = -870; i <= 880; ++i) {
    const float x = static_cast<float>(i) * 0.1003f * 0.99f;
    const double want = std::exp(static_cast<double>(x));
    exp_error = std::max(exp_error, std::abs(kernels::Exp(x) / want - 1));
  }
  for (int i = -60000; i <= 60000; ++i) {
    const float u = static_cast<float>(i) * 1.4e-4f;
    const double want = 0.5 * std::erfc(-static_cast<double>(u) * std::sqrt(0.5));
    cdf_error = std::max(cdf_error, std::abs(Cdf(u) - want));
  }
  EXPECT_LE(exp_error, 1.2e-7);
  EXPECT_LE(cdf_error, 2.6e-7);
}

TEST(RowMathTest, ExtremesAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  EXPECT_EQ(kernels::Exp(-inf), 0.0f);
  EXPECT_EQ(kernels::Exp(-1000.0f), 0.0f);
  EXPECT_EQ(kernels::Exp(0.0f), 1.0f);
  EXPECT_EQ(Cdf(inf), 1.0f);
  EXPECT_EQ(Cdf(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(kernels::Exp(nan)));
  EXPECT_TRUE(std::isnan(Cdf(nan)));
}

TEST(CrossEntropyTest, LargeLogitsStayFiniteAndNanIsNotHidden) {
  at::Tensor z = at::full({2, 40}, 3e4f);
  z[0][3] = 3.1e4f;
  const at::Tensor labels = at::full({2}, 3, at::kLong);
  const auto out = row_ops::CrossEntropy(z, labels);
  EXPECT_EQ(out.loss[0].item<float>(), 0);
  EXPECT_NEAR(out.loss[1].item<float>(), std::log(40.0), 1e-5);
  z[1][20] = std::nanf("");
  EXPECT_TRUE(std::isnan(row_ops::CrossEntropy(z, labels).loss[1].item<float>()));
}

TEST(CrossEntropyTest, ALabelOutsideTheVocabularyIsAnError) {
  const at::Tensor z = at::zeros({2, 8});
  EXPECT_ANY_THROW(row_ops::CrossEntropy(z, at::full({2}, 8, at::kLong)));
  EXPECT_ANY_THROW(row_ops::CrossEntropy(z, at::full({2}, -1, at::kLong)));
}

}  // namespace
}  // namespace muster
