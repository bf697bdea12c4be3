// exp and the normal distribution as straight-line code that compilers turn into vector
// instructions. fp32: exp's polynomial is fitted for this file (Lawson-weighted least squares on
// Chebyshev nodes); both are checked against the exact functions. Doubles call the library. No
// multiply-add is fused, so every CPU gives the same bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace muster::kernels {

#define MUSTER_INLINE __attribute__((always_inline)) inline

// Relative error at most 1.2e-7 for x <= 88; 0 below -87.3. Reduction as in Cody and Waite (1980):
// x = k ln 2 + r with ln 2 in two parts, then e^r = 2^k p(r), |r| <= ln 2 / 2.
MUSTER_INLINE float Exp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = std::min(std::max(x, -87.3f), 88.0f);
  const float k = (clamped * 1.44269504f + kRound) - kRound;
  const float r = (clamped - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 0.0013956062030047178f;
  p = p * r + 0.008375135250389576f;
  p = p * r + 0.04166608303785324f;
  p = p * r + 0.16666415333747864f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(k) + 127) << 23);
  return x < -87.3f ? 0.0f : p * scale;
}
MUSTER_INLINE double Exp(double x) { return std::exp(x); }

// Phi(u), the normal distribution, given e = exp(-u^2 / 2): one exponential serves Phi and its
// derivative. fp32: the tail by Abramowitz and Stegun (1964) 7.1.26 with erf's argument u / sqrt(2)
// and halved coefficients. Absolute error at most 2.6e-7, rounding included.
MUSTER_INLINE float NormalCdf(float u, float e) {
  const float t = 1.0f / (1.0f + 0.231641888f * std::abs(u));  // 0.3275911 / sqrt(2)
  float p = 0.5307027145f;
  p = p * t - 0.7265760135f;
  p = p * t + 0.7107068705f;
  p = p * t - 0.142248368f;
  p = p * t + 0.127414796f;
  const float tail = p * t * e;
  return u < 0.0f ? tail : 1.0f - tail;
}
MUSTER_INLINE double NormalCdf(double u, double /*e*/) {
  return 0.5 * (1.0 + std::erf(u * 0.70710678118654752440));
}

}  // namespace muster::kernels
