// Pieces of attention on a GPU (the kernels that context parallelism uses there) beside exact
// attention on the CPU in fp64, alone and joined.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "test_support.h"
#include "worker/model/attention_piece.h"

namespace muster {
namespace {

struct Shape {
  int64_t queries, keys;
  std::optional<int64_t> past;
};
struct Where {
  at::Device device;
  at::ScalarType dtype;
};

// 2 samples, 4 heads in 2 groups, D = 32; numbers that every type holds exactly.
struct Inputs {
  AttentionTensors in;
  at::Tensor dout;

  Inputs(const Shape& shape, const Where& where) {
    const auto rows = [&](int64_t n, int64_t heads, uint64_t seed) {
      const at::Tensor x = RandomLeaf({2, n, heads, 32}, seed).detach();
      return x.to(at::kBFloat16).to(where.device, where.dtype);
    };
    in = {rows(shape.queries, 4, 1), rows(shape.keys, 2, 2), rows(shape.keys, 2, 3)};
    dout = rows(shape.queries, 4, 4);
  }
};

PieceOptions OptionsFor(const Where& where) {
  PieceOptions options;
  options.exact = where.dtype == at::kDouble;
  return options;
}

struct Named {
  const char* name;
  at::Tensor value;
};
// The gradients are those of a piece whose queries see other keys too: with an output and a sum of
// scores that are not its own.
std::vector<Named> Attend(const Shape& shape, const Where& where) {
  const Inputs x(shape, where);
  const Visible visible{.past = shape.past};
  const PieceOptions options = OptionsFor(where);
  const PieceResult piece = AttendPiece(x.in, visible, options);
  const PieceOutput whole{
      .out = piece.out.mul(0.5).contiguous(), .lse = piece.lse.add(0.7), .dout = x.dout};
  const AttentionTensors d = AttendPieceBackward(x.in, visible, options, piece.kept, whole);
  return {{"out", piece.out}, {"lse", piece.lse}, {"dq", d.q}, {"dk", d.k}, {"dv", d.v}};
}

struct Type {
  at::ScalarType dtype;
  double bound;  // of the largest difference; all numbers are of the order of 1
};
const Type kTypes[] = {
    {at::kDouble, 1e-12}, {at::kFloat, 1e-4}, {at::kBFloat16, 0.04}, {at::kHalf, 0.006}};

void ExpectNear(const at::Tensor& gpu, const at::Tensor& exact, double bound, const char* name) {
  EXPECT_LE(MaxDifference(gpu.to(at::kCPU, at::kDouble), exact.to(at::kDouble)), bound) << name;
}

class GpuAttentionPieceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    at::globalContext().setAllowTF32CuBLAS(false);
  }
  const Where exact_{at::kCPU, at::kDouble};
};

// A square below the diagonal, a prefix and the square after it, rectangles.
TEST_F(GpuAttentionPieceTest, KernelsStayNearExactAttention) {
  for (const Shape& shape : {Shape{128, 128, 0},
                             {64, 192, 128},
                             {64, 128, {}},
                             {128, 64, {}},
                             {96, 96, 0},
                             {48, 80, 32}}) {
    const std::vector<Named> exact = Attend(shape, exact_);
    for (const Type& type : kTypes) {
      SCOPED_TRACE(
          absl::StrCat(shape.queries, " x ", shape.keys, " in ", at::toString(type.dtype)));
      const std::vector<Named> gpu = Attend(shape, {at::kCUDA, type.dtype});
      for (size_t i = 0; i < exact.size(); ++i)
        ExpectNear(gpu[i].value, exact[i].value, type.bound, exact[i].name);
    }
  }
}

// As the ring takes them: views of the rows, the second half of the queries alone.
TEST_F(GpuAttentionPieceTest, JoinedPiecesOfViewsAreOne) {
  constexpr int64_t kRows = 128, kHalf = kRows / 2;
  const Shape shape{kRows, kRows, {}};
  const Inputs x(shape, exact_);
  const auto keys = [](const AttentionTensors& in, int64_t first, int64_t count) {
    return AttentionTensors{in.q, in.k.narrow(1, first, count), in.v.narrow(1, first, count)};
  };
  const PieceResult first = AttendPiece(keys(x.in, 0, kHalf), {}, OptionsFor(exact_));
  const PieceResult all = AttendPiece(x.in, {}, OptionsFor(exact_));
  const at::Tensor out =
      at::cat({first.out.narrow(1, 0, kHalf), all.out.narrow(1, kHalf, kHalf)}, 1);
  const at::Tensor lse =
      at::cat({first.lse.narrow(2, 0, kHalf), all.lse.narrow(2, kHalf, kHalf)}, 2);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(at::toString(type.dtype));
    const Where where{at::kCUDA, type.dtype};
    const Inputs on_gpu(shape, where);
    JoinedAttention joined;
    joined.Add(AttendPiece(keys(on_gpu.in, 0, kHalf), {}, OptionsFor(where)));
    AttentionTensors second = keys(on_gpu.in, kHalf, kHalf);
    second.q = second.q.narrow(1, kHalf, kHalf);
    joined.Add(AttendPiece(second, {}, OptionsFor(where)), kHalf);
    ExpectNear(joined.out(), out, type.bound, "out");
    ExpectNear(joined.lse(), lse, type.bound, "lse");
  }
}

}  // namespace
}  // namespace muster
