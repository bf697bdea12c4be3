// bf16 attention in blocks against exact attention in fp64 over the same rounded inputs.

#include "worker/model/blocked_attention.h"

#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/model/core_attention.h"

namespace muster {
namespace {

struct Case {
  int64_t seq, heads, groups, channels;
  bool seq_major;
  bool rotary;
};

class BlockedAttentionTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const QkvHeads heads = SplitQkv(qkv_, shape_, layout_);
    if (!BlockedAttentionTakes({heads.q, heads.k, heads.v})) {
      GTEST_SKIP() << "this CPU has no bf16 products";
    }
  }

  std::optional<RotaryTable> Rotary(at::ScalarType dtype) const {
    if (!GetParam().rotary) return std::nullopt;
    TransformerConfig config;
    config.kv_channels = shape_.channels;
    config.max_position_embeddings = layout_.seq;
    return RotaryTable(config, dtype, at::kCPU);
  }

  struct Result {
    at::Tensor out, dqkv;
  };
  Result Blocked() const {
    const at::Tensor leaf = qkv_.clone().requires_grad_();
    const auto rotary = Rotary(at::kBFloat16);
    const at::Tensor out =
        FlashCausalAttentionOp(leaf, shape_, layout_, rotary ? &*rotary : nullptr);
    out.backward(dout_);
    return {out.detach(), leaf.grad()};
  }
  Result Exact() const {
    const at::Tensor leaf = qkv_.to(at::kDouble).requires_grad_();
    QkvHeads heads = SplitQkv(leaf, shape_, layout_);
    if (const auto rotary = Rotary(at::kDouble)) {
      heads.q = rotary->RotateOp(heads.q);
      heads.k = rotary->RotateOp(heads.k);
    }
    const at::Tensor out = ExactAttention(heads, shape_, layout_, {});
    out.backward(dout_.to(at::kDouble));
    return {out.detach(), leaf.grad()};
  }

  at::Tensor Random(int64_t width, uint64_t seed, double scale) const {
    return (RandomLeaf({layout_.rows(), width}, seed).detach() * scale).to(at::kBFloat16);
  }
  AttentionShape shape_{GetParam().heads, GetParam().groups, GetParam().channels};
  TokenLayout layout_{2, GetParam().seq, GetParam().seq_major};
  at::Tensor qkv_ = Random((shape_.heads + 2 * shape_.groups) * shape_.channels, 7, 2);
  at::Tensor dout_ = Random(shape_.heads * shape_.channels, 8, 1);
};

// |got - want| / |want| over the whole tensor: bf16 keeps 2^-9 of each number.
double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want).norm() / want.norm()).item<double>();
}

TEST_P(BlockedAttentionTest, IsExactAttentionUpToRounding) {
  const Result got = Blocked(), want = Exact();
  // With rotary, q and k are rounded once more.
  const double tolerance = GetParam().rotary ? 1e-2 : 5e-3;
  EXPECT_LE(RelativeError(got.out, want.out), tolerance);
  const auto grouped = [&](const at::Tensor& x) {
    return x.view({layout_.rows(), shape_.groups, shape_.heads_a_group() + 2, shape_.channels});
  };
  for (int64_t slot = 0; slot < shape_.heads_a_group() + 2; ++slot) {
    EXPECT_LE(RelativeError(grouped(got.dqkv).select(2, slot), grouped(want.dqkv).select(2, slot)),
              tolerance)
        << "slot " << slot << " of queries, key, value";
  }
}

TEST_P(BlockedAttentionTest, BitsDoNotDependOnThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Result one = Blocked();
  at::set_num_threads(2);
  const Result two = Blocked();
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.out, two.out));
  EXPECT_TRUE(at::equal(one.dqkv, two.dqkv));
}

TEST_P(BlockedAttentionTest, ALaterTokenChangesNoEarlierRow) {
  const Result before = Blocked();
  const int64_t last = layout_.rows() - 1;  // last position of the last sample in both layouts
  qkv_[last].fill_(3);
  const Result after = Blocked();
  EXPECT_TRUE(at::equal(before.out.narrow(0, 0, last), after.out.narrow(0, 0, last)));
  EXPECT_FALSE(at::equal(before.out[last], after.out[last]));
}

INSTANTIATE_TEST_SUITE_P(Shapes, BlockedAttentionTest,
                         testing::Values(Case{64, 2, 2, 64, false, false},
                                         Case{384, 2, 2, 32, false, false},
                                         Case{320, 4, 2, 16, true, false},
                                         Case{128, 4, 1, 8, false, true},
                                         Case{192, 2, 2, 18, true, true}));

TEST(BlockedAttentionTakesTest, LeavesOtherTypesAndLengthsToLibTorch) {
  const auto takes = [](int64_t seq, at::ScalarType dtype) {
    const at::Tensor x = at::zeros({1, seq, 2, 8}, dtype);
    return BlockedAttentionTakes({x, x, x});
  };
  EXPECT_FALSE(takes(64, at::kFloat));
  EXPECT_FALSE(takes(65, at::kBFloat16));
  EXPECT_FALSE(takes(64 * 65, at::kBFloat16));
}

}  // namespace
}  // namespace muster
