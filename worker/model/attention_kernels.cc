#include "worker/model/attention_kernels.h"

#include <limits>

#include "worker/model/row_math.h"
#include "worker/parallel/flat_kernels.h"

namespace muster::kernels {
namespace {

using Half = uint16_t __attribute__((may_alias));  // the bits of a bf16

constexpr int kLanes = 16;  // partial sums; which element goes to which is the same on every CPU

// To nearest, ties to even; NaN stays NaN. Without branches, unlike c10's.
MUSTER_INLINE uint32_t Round(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
}
MUSTER_INLINE float Widen(Half x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

MUSTER_INLINE float Total(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

MUSTER_INLINE const Half* Bits(const c10::BFloat16* x) { return reinterpret_cast<const Half*>(x); }
MUSTER_INLINE Half* Bits(c10::BFloat16* x) { return reinterpret_cast<Half*>(x); }

}  // namespace

MUSTER_VECTOR_CLONES void PackRows(const c10::BFloat16* x, int64_t stride, int64_t rows,
                                   int64_t cols, BfPair* out) {
  for (int64_t i = 0; i < rows; i += 2, out += cols) {
    const Half* low = Bits(x) + i * stride;
    const Half* high = low + stride;
    for (int64_t j = 0; j < cols; ++j) {
      out[j] = static_cast<uint32_t>(low[j]) | static_cast<uint32_t>(high[j]) << 16;
    }
  }
}

MUSTER_VECTOR_CLONES void TransposePairs(const BfPair* in, int64_t in_stride, int64_t rows,
                                         int64_t cols, BfPair* out, int64_t out_stride) {
  constexpr int64_t kTile = 16;  // a tile's rows and columns stay in the first-level cache
  for (int64_t i = 0; i < rows; i += kTile) {
    for (int64_t j = 0; j < cols; j += kTile) {
      const int64_t last_i = std::min(rows, i + kTile), last_j = std::min(cols, j + kTile);
      for (int64_t c = j; c < last_j; ++c) {
        for (int64_t r = i; r < last_i; ++r) out[c * out_stride + r] = in[r * in_stride + c];
      }
    }
  }
}

MUSTER_VECTOR_CLONES void UnpackRows(const BfPair* in, int64_t half_rows, int64_t cols,
                                     c10::BFloat16* out) {
  for (int64_t i = 0; i < half_rows; ++i, in += cols) {
    Half* low = Bits(out) + 2 * i * cols;
    Half* high = low + cols;
    for (int64_t j = 0; j < cols; ++j) low[j] = static_cast<Half>(in[j]);
    for (int64_t j = 0; j < cols; ++j) high[j] = static_cast<Half>(in[j] >> 16);
  }
}

MUSTER_VECTOR_CLONES void RoundToPairs(const float* x, int64_t rows, int64_t cols, BfPair* out) {
  for (int64_t i = 0; i < rows; i += 2, x += 2 * cols, out += cols) {
    for (int64_t j = 0; j < cols; ++j) out[j] = Round(x[j]) | Round(x[cols + j]) << 16;
  }
}

MUSTER_VECTOR_CLONES void RoundRows(const float* x, const float* factor, int64_t rows, int64_t cols,
                                    c10::BFloat16* out, int64_t out_stride) {
  for (int64_t i = 0; i < rows; ++i, x += cols) {
    const float scale = factor != nullptr ? factor[i] : 1.0f;
    Half* y = Bits(out) + i * out_stride;
    for (int64_t j = 0; j < cols; ++j) y[j] = static_cast<Half>(Round(x[j] * scale));
  }
}

MUSTER_VECTOR_CLONES void DotRows(const c10::BFloat16* a, int64_t a_stride, const c10::BFloat16* b,
                                  int64_t b_stride, int64_t rows, int64_t cols, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const Half* x = Bits(a) + i * a_stride;
    const Half* y = Bits(b) + i * b_stride;
    float lanes[kLanes] = {};
    int64_t j = 0;
    for (; j + kLanes <= cols; j += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += Widen(x[j + lane]) * Widen(y[j + lane]);
      }
    }
    for (; j < cols; ++j) lanes[0] += Widen(x[j]) * Widen(y[j]);
    out[i] = Total(lanes);
  }
}

MUSTER_VECTOR_CLONES void CausalSoftmax(float* __restrict s, int64_t rows, int64_t cols,
                                        int64_t visible, float scale, c10::BFloat16* p,
                                        float* inverse_sum, float* lse) {
  for (int64_t i = 0; i < rows; ++i, s += cols) {
    const int64_t seen = std::min(cols, visible + i);
    const int64_t width = (seen + kLanes - 1) / kLanes * kLanes;  // whole vectors only
    for (int64_t j = seen; j < width; ++j) s[j] = -std::numeric_limits<float>::infinity();
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = s[lane];
    for (int64_t j = kLanes; j < width; j += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = s[j + lane] > lanes[lane] ? s[j + lane] : lanes[lane];
      }
    }
    float top = lanes[0];
    for (int lane = 1; lane < kLanes; ++lane) top = std::max(top, lanes[lane]);
    Half* __restrict row = Bits(p) + i * cols;
    // One flat loop, which becomes full-width vectors; the lanes of the sum go in another.
    for (int64_t j = 0; j < width; ++j) {
      const float e = Exp((s[j] - top) * scale);
      s[j] = e;
      row[j] = static_cast<Half>(Round(e));
    }
    float sums[kLanes] = {};
    for (int64_t j = 0; j < width; j += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += s[j + lane];
    }
    for (int64_t j = width; j < cols; ++j) row[j] = 0;
    const float sum = Total(sums);
    inverse_sum[i] = 1.0f / sum;
    lse[i] = top * scale + std::log(sum);
  }
}

MUSTER_VECTOR_CLONES void ScoreGrads(const ScoreGradBlock& block) {
  const int64_t cols = block.cols;
  const float scale = block.scale;
  const float* lse = block.lse;
  const float* delta = block.delta;
  for (int64_t i = 0; i < block.rows; i += 2) {
    BfPair* pairs = block.ds_pairs + i / 2 * cols;
    for (int64_t odd = 0; odd < 2; ++odd) {
      const int64_t row = i + odd;
      const int32_t hidden = static_cast<int32_t>(std::max<int64_t>(0, row + block.hidden));
      const float* s = block.s + row * cols;
      const float* dp = block.dp + row * cols;
      Half* __restrict p = Bits(block.p) + row * cols;
      Half* __restrict ds = Bits(block.ds) + row * cols;
      const int32_t width = static_cast<int32_t>(cols);
      for (int32_t j = 0; j < width; ++j) {
        const float e = Exp(s[j] * scale - lse[j]);
        const float prob = j >= hidden ? e : 0.0f;
        p[j] = static_cast<Half>(Round(prob));
        ds[j] = static_cast<Half>(Round(prob * (dp[j] - delta[j]) * scale));
      }
    }
    const Half* low = Bits(block.ds) + i * cols;
    const Half* high = low + cols;
    for (int64_t j = 0; j < cols; ++j) {
      pairs[j] = static_cast<uint32_t>(low[j]) | static_cast<uint32_t>(high[j]) << 16;
    }
  }
}

}  // namespace muster::kernels
