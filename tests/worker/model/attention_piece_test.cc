#include "worker/model/attention_piece.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "test_support.h"

namespace muster {
namespace {

// Queries against keys: a square below the diagonal, a prefix and the square after it, a rectangle.
struct Shape {
  int64_t queries, keys;
  std::optional<int64_t> past;
  std::string Name() const {
    return absl::StrCat(queries, " x ", keys, past ? absl::StrCat(", past ", *past) : "");
  }
};

// 2 samples, 4 heads in 2 groups, D = 8; every number is one of `dtype`.
struct Inputs {
  AttentionTensors in;
  at::Tensor dout;

  Inputs(const Shape& shape, at::ScalarType dtype) {
    const auto rows = [&](int64_t n, int64_t heads, uint64_t seed) {
      return RandomLeaf({2, n, heads, 8}, seed).detach().mul(2).to(dtype);
    };
    in = {rows(shape.queries, 4, 1), rows(shape.keys, 2, 2), rows(shape.keys, 2, 3)};
    dout = rows(shape.queries, 4, 4);
  }
  Inputs As(at::ScalarType dtype) const {
    Inputs other = *this;
    for (at::Tensor* x : {&other.in.q, &other.in.k, &other.in.v, &other.dout}) *x = x->to(dtype);
    return other;
  }
};

struct Result {
  PieceResult piece;
  AttentionTensors grads;
};
// The gradients are those of a piece whose queries see other keys too: with an output and a sum of
// scores that are not its own.
Result Attend(const Inputs& x, const Shape& shape, bool exact) {
  const Visible visible{.past = shape.past};
  PieceOptions options;
  options.exact = exact;
  Result result;
  result.piece = AttendPiece(x.in, visible, options);
  const PieceOutput whole{.out = result.piece.out.mul(0.5).contiguous(),
                          .lse = result.piece.lse.add(0.7),
                          .dout = x.dout};
  result.grads = AttendPieceBackward(x.in, visible, options, result.piece.kept, whole);
  return result;
}

void ExpectNear(const Result& a, const Result& b, double tolerance) {
  const auto near = [&](const at::Tensor& x, const at::Tensor& y, const char* name) {
    EXPECT_LE(MaxDifference(x.to(at::kDouble), y.to(at::kDouble)), tolerance) << name;
  };
  near(a.piece.out, b.piece.out, "out");
  near(a.piece.lse, b.piece.lse, "lse");
  near(a.grads.q, b.grads.q, "dq");
  near(a.grads.k, b.grads.k, "dk");
  near(a.grads.v, b.grads.v, "dv");
}

TEST(AttentionPieceTest, FlashKernelIsExactAttention) {
  for (const Shape& shape : {Shape{6, 6, 0}, {6, 10, 4}, {6, 12, 6}, {4, 9, {}}, {9, 4, {}}}) {
    SCOPED_TRACE(shape.Name());
    const Inputs x(shape, at::kDouble);
    ExpectNear(Attend(x, shape, /*exact=*/false), Attend(x, shape, /*exact=*/true), 1e-13);
  }
}

TEST(AttentionPieceTest, Bf16KernelsStayNearExactAttention) {
  for (const Shape& shape : {Shape{128, 128, 0},
                             {64, 192, 128},
                             {64, 128, {}},
                             {128, 64, {}},
                             {320, 320, 0},
                             {24, 40, 16}}) {
    SCOPED_TRACE(shape.Name());
    const Inputs x(shape, at::kBFloat16);
    ExpectNear(Attend(x, shape, /*exact=*/false), Attend(x.As(at::kFloat), shape, /*exact=*/true),
               0.04);
  }
}

// Pieces with other keys each, joined in any order, are one.
TEST(AttentionPieceTest, JoinedPiecesAreOne) {
  const Inputs x({6, 10, {}}, at::kDouble);
  const PieceResult whole = AttendPiece(x.in, {}, {});
  const auto keys = [&](int64_t first, int64_t count) {
    return AttendPiece({x.in.q, x.in.k.narrow(1, first, count), x.in.v.narrow(1, first, count)}, {},
                       {});
  };
  JoinedAttention forward, backward;
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 5}, {8, 2}}) {
    forward.Add(keys(first, count));
  }
  for (const auto& [first, count] : {std::pair{8, 2}, {3, 5}, {0, 3}}) {
    backward.Add(keys(first, count));
  }
  for (const JoinedAttention& joined : {forward, backward}) {
    EXPECT_LE(MaxDifference(joined.out(), whole.out), 1e-14);
    EXPECT_LE(MaxDifference(joined.lse(), whole.lse), 1e-14);
  }
}

// Scores far apart: the smaller share vanishes and nothing overflows.
TEST(AttentionPieceTest, JoiningSurvivesExtremeScores) {
  const Inputs x({4, 4, {}}, at::kFloat);
  PieceResult low = AttendPiece(x.in, {}, {}), high = low;
  high.out = low.out + 1;
  low.lse = at::full_like(low.lse, -10000);
  high.lse = at::full_like(low.lse, 800);
  JoinedAttention joined;
  joined.Add({low.out.clone(), low.lse.clone(), {}});
  joined.Add(high);
  EXPECT_TRUE(at::equal(joined.out(), high.out));
  EXPECT_TRUE(at::equal(joined.lse(), high.lse));
}

// Ranks whose pieces differ in size keep the same random state.
TEST(AttentionPieceTest, DropoutDrawsAsManyNumbersAsItIsTold) {
  std::vector<at::Tensor> states;
  for (const int64_t keys : {4, 12}) {
    const Inputs x({4, keys, {}}, at::kDouble);
    PieceOptions options;
    options.exact = true;
    options.dropout = 0.5;
    options.drawn_keys = 12;
    options.generator = at::detail::createCPUGenerator(5);
    AttendPiece(x.in, {}, options);
    states.push_back(options.generator.get_state());
  }
  EXPECT_TRUE(at::equal(states[0], states[1]));
}

}  // namespace
}  // namespace muster
