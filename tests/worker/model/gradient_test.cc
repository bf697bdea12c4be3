// Every operation with a backward of its own against central differences in fp64, and its main_grad
// form against the form that hands gradients to autograd.

#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/model/activation.h"
#include "worker/model/core_attention.h"
#include "worker/model/linear.h"
#include "worker/model/lm_head.h"
#include "worker/model/norm.h"

namespace muster {
namespace {

constexpr double kTolerance = 1e-8;

struct NormUnderTest {
  explicit NormUnderTest(Normalization kind) {
    config.normalization = kind;
    LayerBuild build{
        .config = config, .tp = {}, .rng = rng, .dtype = at::kDouble, .parameters = parameters};
    norm = std::make_unique<Norm>(build, "norm", 6);
    at::NoGradGuard no_grad;
    uint64_t seed = 50;
    for (const ParameterPtr& p : parameters) p->data.copy_(RandomLeaf({6}, ++seed));
  }
  std::vector<at::Tensor> Leaves(std::vector<at::Tensor> more) const {
    for (const ParameterPtr& p : parameters) more.push_back(p->data);
    return more;
  }
  TransformerConfig config;
  RngTracker rng = MakeRng();
  std::vector<ParameterPtr> parameters;
  std::unique_ptr<Norm> norm;
};

class NormGradientTest : public testing::TestWithParam<Normalization> {};

TEST_P(NormGradientTest, AloneMatchesDifferences) {
  NormUnderTest t(GetParam());
  const at::Tensor x = RandomLeaf({5, 6}, 1);
  EXPECT_LE(GradientError(t.Leaves({x}), [&] { return t.norm->Forward(x); }), kTolerance);
}

TEST_P(NormGradientTest, FusedAddMatchesDifferences) {
  NormUnderTest t(GetParam());
  const at::Tensor residual = RandomLeaf({5, 6}, 1), branch = RandomLeaf({5, 6}, 2);
  const ParameterPtr bias = RandomParameter({6}, 3);
  const at::Tensor mask = at::rand({5, 6}, at::kDouble).gt(0.5).to(at::kDouble) * 2;
  for (const bool drop : {false, true}) {
    SCOPED_TRACE(drop);
    // Both results are used, so that both gradients meet in the backward.
    EXPECT_LE(GradientError(t.Leaves({residual, branch, bias->data}),
                            [&] {
                              const Norm::Result r = t.norm->Forward(
                                  PendingAdd{residual, branch, bias, drop ? mask : at::Tensor()});
                              return at::cat({r.x, r.y});
                            }),
              kTolerance);
  }
}

TEST_P(NormGradientTest, ResidualAloneUsedMatchesDifferences) {
  NormUnderTest t(GetParam());
  const at::Tensor residual = RandomLeaf({5, 6}, 1), branch = RandomLeaf({5, 6}, 2);
  const ParameterPtr bias = RandomParameter({6}, 3);
  EXPECT_LE(GradientError({residual, branch, bias->data},
                          [&] {
                            return t.norm->Forward(PendingAdd{residual, branch, bias, {}}).x;
                          }),
            kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormGradientTest,
                         testing::Values(Normalization::kLayerNorm, Normalization::kRmsNorm));

TEST(GradientTest, FinishAddMatchesDifferences) {
  const at::Tensor residual = RandomLeaf({3, 4}, 1), branch = RandomLeaf({3, 4}, 2);
  const ParameterPtr bias = RandomParameter({4}, 3);
  const at::Tensor mask = at::rand({3, 4}, at::kDouble).gt(0.5).to(at::kDouble) * 2;
  EXPECT_LE(GradientError({residual, branch, bias->data},
                          [&] {
                            return FinishAdd({residual, branch, bias, mask});
                          }),
            kTolerance);
}

TEST(GradientTest, LinearMatchesDifferences) {
  const at::Tensor x = RandomLeaf({5, 4}, 1);
  const ParameterPtr weight = RandomParameter({3, 4}, 2), bias = RandomParameter({3}, 3);
  EXPECT_LE(GradientError({x, weight->data, bias->data}, [&] { return LinearOp(x, weight, bias); }),
            kTolerance);
  EXPECT_LE(GradientError({x, weight->data}, [&] { return LinearOp(x, weight, nullptr); }),
            kTolerance);
}

TEST(GradientTest, ActivationsMatchDifferences) {
  const at::Tensor x = RandomLeaf({5, 6}, 1);
  const ParameterPtr bias = RandomParameter({6}, 2);
  EXPECT_LE(GradientError({x, bias->data}, [&] { return BiasGeluOp(x, bias); }), kTolerance);
  EXPECT_LE(GradientError({x}, [&] { return BiasGeluOp(x, nullptr); }), kTolerance);
  EXPECT_LE(GradientError({x, bias->data}, [&] { return BiasSwigluOp(x, bias); }), kTolerance);
  EXPECT_LE(GradientError({x}, [&] { return BiasSwigluOp(x, nullptr); }), kTolerance);
}

TEST(GradientTest, LmHeadLossMatchesDifferences) {
  const at::Tensor hidden = RandomLeaf({5, 4}, 1);
  const ParameterPtr weight = RandomParameter({7, 4}, 2);
  const at::Tensor labels = at::arange(5, at::kLong) + 1;
  EXPECT_LE(
      GradientError({hidden, weight->data}, [&] { return LmHeadLossOp(hidden, weight, labels); }),
      kTolerance);
}

struct AttentionCase {
  int64_t heads, groups;
  bool seq_major;
  double rotary_percent;  // 0: none
};

class AttentionGradientTest : public testing::TestWithParam<AttentionCase> {
 protected:
  AttentionShape shape_{GetParam().heads, GetParam().groups, 4};
  TokenLayout layout_{2, 5, GetParam().seq_major};
  at::Tensor qkv_ = RandomLeaf({10, (GetParam().heads + 2 * GetParam().groups) * 4}, 7);
  std::optional<RotaryTable> Rotary() const {
    if (GetParam().rotary_percent == 0) return std::nullopt;
    TransformerConfig config;
    config.kv_channels = 4;
    config.rotary_percent = GetParam().rotary_percent;
    config.max_position_embeddings = 8;
    return RotaryTable(config, at::kDouble, at::kCPU);
  }
  at::Tensor Exact(const std::optional<RotaryTable>& rotary, const at::Tensor& mask) const {
    QkvHeads heads = SplitQkv(qkv_, shape_, layout_);
    if (rotary.has_value()) {
      heads.q = rotary->RotateOp(heads.q);
      heads.k = rotary->RotateOp(heads.k);
    }
    return ExactAttention(heads, shape_, layout_, {.mask = mask});
  }
};

TEST_P(AttentionGradientTest, FlashMatchesDifferences) {
  const auto rotary = Rotary();
  EXPECT_LE(GradientError({qkv_},
                          [&] {
                            return FlashCausalAttentionOp(qkv_, shape_, layout_,
                                                          rotary ? &*rotary : nullptr);
                          }),
            kTolerance);
}

TEST_P(AttentionGradientTest, ExactMatchesDifferences) {
  const auto rotary = Rotary();
  EXPECT_LE(GradientError({qkv_}, [&] { return Exact(rotary, {}); }), kTolerance);
}

TEST_P(AttentionGradientTest, FlashEqualsExactWithCausalMask) {
  const auto rotary = Rotary();
  const at::Tensor mask = at::ones({2, 1, 5, 5}, at::kBool).triu(1);
  EXPECT_LE(
      MaxDifference(FlashCausalAttentionOp(qkv_, shape_, layout_, rotary ? &*rotary : nullptr),
                    Exact(rotary, mask)),
      1e-14);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradientTest,
                         testing::Values(AttentionCase{2, 2, false, 0},
                                         AttentionCase{4, 2, false, 1.0},
                                         AttentionCase{4, 1, true, 0.5},
                                         AttentionCase{2, 2, true, 1.0}));

TEST(MainGradTest, EveryParameterIsTheAutogradGradient) {
  TransformerConfig config = TinyConfig();
  config.qk_layernorm = true;
  config.position_embedding = PositionEmbedding::kRope;
  config.num_query_groups = 2;
  const Batch batch = RandomBatch(config, 2, 8, 5);
  auto plain = MakeModel(config, at::kDouble), buffered = MakeModel(config, at::kDouble);
  AttachMainGrads(buffered->parameters(), at::kDouble);
  plain->Forward(batch, {}).sum().backward();
  buffered->Forward(batch, {}).sum().backward();
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    SCOPED_TRACE(plain->parameters()[i]->name);
    EXPECT_LE(
        MaxDifference(plain->parameters()[i]->data.grad(), buffered->parameters()[i]->main_grad),
        1e-12);
    EXPECT_FALSE(buffered->parameters()[i]->data.grad().defined());
  }
}

}  // namespace
}  // namespace muster
