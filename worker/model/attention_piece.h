// A piece of attention: some queries against some keys, which need not be all that they may see.
// Attention on one rank is one piece; context parallelism cuts it into several (cp_attention.h),
// and JoinedAttention puts those of the same queries together by ln sum exp of their scores.
//
// Kernels: BlockedAttention for bf16 and LibTorch's flash kernel for the rest on a CPU,
// DeviceAttention on a GPU. None builds the matrix of scores. With a mask or dropout, and where no
// kernel takes the type or width, scores are computed as Megatron's unfused path does.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "worker/model/blocked_attention.h"
#include "worker/model/device_attention.h"

namespace muster {

// Which keys a query of the piece sees.
struct Visible {
  // Query i sees the first past + i + 1 keys; none: all. With it, keys = past + queries.
  std::optional<int64_t> past;
  at::Tensor hidden;  // (B, 1, queries, keys) bool, true = not seen: instead of past
};

struct PieceOptions {
  bool exact = false;       // scores and probabilities in full: masks and dropout need it
  double dropout = 0;       // on the probabilities
  at::Generator generator;  // of the dropout
  // Columns of random numbers that a piece draws, at least its keys: ranks whose pieces differ in
  // size keep the same random state. 0: its keys.
  int64_t drawn_keys = 0;
};

// What a piece's backward needs besides inputs and joined results.
struct PieceKept {
  at::Tensor dropped;     // (B, heads, queries, keys) bool, true = kept
  DeviceAttended device;  // without out and lse
};

struct PieceResult {
  at::Tensor out;  // (B, queries, heads, D)
  at::Tensor lse;  // (B, heads, queries), ln sum exp of the scaled scores; fp32 (fp64 for fp64)
  PieceKept kept;
};

// `slot`, like out: written where the kernel can write there, and then it is the result's out.
PieceResult AttendPiece(const AttentionTensors& in, const Visible& visible,
                        const PieceOptions& options, const at::Tensor& slot = {});

// Of the queries' whole attention: what the pieces joined to.
struct PieceOutput {
  at::Tensor out, lse;  // as in PieceResult
  at::Tensor dout;      // like out
};
// This piece's share of the gradients, shaped as the inputs. `slots` may be undefined, or are
// written and returned where the kernel can write there.
AttentionTensors AttendPieceBackward(const AttentionTensors& in, const Visible& visible,
                                     const PieceOptions& options, const PieceKept& kept,
                                     const PieceOutput& whole, const AttentionTensors& slots = {});

// Of one set of queries, as their pieces come:
//   lse <- max(lse, lse_i) + log1p(exp(min - max)),  out = sum_i out_i exp(lse_i - lse)
// (reference 14.3), the sum kept up to date, so that no piece's output is kept. fp32 (fp64 for
// fp64).
class JoinedAttention {
 public:
  // The first piece has all queries; later ones may have those from `first_query` on only.
  void Add(const PieceResult& piece, int64_t first_query = 0);
  const at::Tensor& out() const { return out_; }  // (B, queries, heads, D)
  const at::Tensor& lse() const { return lse_; }  // (B, heads, queries)

 private:
  at::Tensor out_, lse_;
};

}  // namespace muster
