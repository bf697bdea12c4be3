// Loops of bf16 attention between its matrix products, over plain memory; sequential. "Pairs": the
// layout in which oneDNN's bf16 products read their right operand B (k, n): uint32 [k / 2][n], rows
// 2i (low half) and 2i + 1 (high half) side by side.
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>

namespace muster::kernels {

// A bf16 pair read or written as one word.
using BfPair __attribute__((may_alias)) = uint32_t;

// x (rows, cols) of row stride `stride` elements as B: pairs of rows. rows even.
void PackRows(const c10::BFloat16* x, int64_t stride, int64_t rows, int64_t cols, BfPair* out);
// out (cols, rows) = in^T; strides in words. x^T as B: the pairs of x's columns, transposed.
void TransposePairs(const BfPair* in, int64_t in_stride, int64_t rows, int64_t cols, BfPair* out,
                    int64_t out_stride);
// Pairs of rows (half_rows, cols) back to plain rows (2 half_rows, cols).
void UnpackRows(const BfPair* in, int64_t half_rows, int64_t cols, c10::BFloat16* out);
// x (rows, cols) fp32, dense -> pairs of rows, rounded. rows even.
void RoundToPairs(const float* x, int64_t rows, int64_t cols, BfPair* out);
// out[i][j] = factor[i] x[i][j], rounded; x dense. factor null: 1.
void RoundRows(const float* x, const float* factor, int64_t rows, int64_t cols, c10::BFloat16* out,
               int64_t out_stride);
// out[i] = sum_j a[i][j] b[i][j]
void DotRows(const c10::BFloat16* a, int64_t a_stride, const c10::BFloat16* b, int64_t b_stride,
             int64_t rows, int64_t cols, float* out);

// Row i of s (rows, cols) holds q k; its first `visible` + i columns count, or all. p = exp(scale
// (s - max)), 0 where hidden; inverse_sum[i] = 1 / sum p; lse[i] = ln sum exp(scale s). cols: a
// multiple of 16. s is overwritten where hidden.
void CausalSoftmax(float* s, int64_t rows, int64_t cols, int64_t visible, float scale,
                   c10::BFloat16* p, float* inverse_sum, float* lse);

// Transposed blocks of backward: row = key, column = query. p = exp(scale s - lse), 0 where
// column < row + hidden; ds = scale p (dp - delta) (Dao et al. 2022, algorithm 4). All (rows, cols)
// dense, lse and delta (cols); ds_pairs is ds again, as pairs of rows. rows even.
struct ScoreGradBlock {
  const float* s;
  const float* dp;
  const float* lse;
  const float* delta;
  int64_t rows, cols, hidden;
  float scale;
  c10::BFloat16* p;
  c10::BFloat16* ds;
  BfPair* ds_pairs;
};
void ScoreGrads(const ScoreGradBlock& block);

}  // namespace muster::kernels
