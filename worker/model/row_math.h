// exp and erf as straight-line code that compilers turn into vector instructions. fp32: polynomials
// fitted for this file (Lawson-weighted least squares on Chebyshev nodes, checked against the exact
// functions); doubles call the library. No multiply-add is fused, so every CPU gives the same bits.
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

// Absolute error at most 1.4e-7. Near 0: a P(a^2). Beyond 0.95: 1 - exp(R(|a|)), R fitted to
// ln(erfc).
MUSTER_INLINE float Erf(float a) {
  const float t = std::min(std::abs(a), 4.0f);
  const float s = a * a;
  float p = 8.215423440560699e-05f;
  p = p * s - 0.0008105965098366141f;
  p = p * s + 0.00519779697060585f;
  p = p * s - 0.026858104392886162f;
  p = p * s + 0.11283672600984573f;
  p = p * s - 0.37612631916999817f;
  p = p * s + 1.128379225730896f;
  float q = -1.7042179933923762e-07f;
  q = q * t - 1.9253488062531687e-05f;
  q = q * t + 0.0004264509188942611f;
  q = q * t - 0.004153595771640539f;
  q = q * t + 0.025101395323872566f;
  q = q * t - 0.10827802121639252f;
  q = q * t - 0.6333332061767578f;
  q = q * t - 1.12952721118927f;
  q = q * t + 0.0001780940656317398f;
  const float far = 1.0f - Exp(q);
  return t < 0.95f ? a * p : std::copysign(far, a);
}
MUSTER_INLINE double Erf(double a) { return std::erf(a); }

}  // namespace muster::kernels
