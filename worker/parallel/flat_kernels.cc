#include "worker/parallel/flat_kernels.h"

#include <type_traits>

namespace muster::kernels {
namespace {

// Independent sums, so that the loop vectorises; element i goes to sum i % kLanes whatever the
// vector width is.
constexpr int kLanes = 16;

template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, bool kStore>
__attribute__((always_inline)) inline double SumLoop(T* x, int64_t n, Compute<T> scale) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Compute<T> value = static_cast<Compute<T>>(x[i + lane]);
      const Compute<T> scaled = value * scale;
      const double addend = kStore ? value : scaled;
      if constexpr (kStore) x[i + lane] = static_cast<T>(scaled);
      lanes[lane] += addend * addend;
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const Compute<T> value = static_cast<Compute<T>>(x[i]);
    const Compute<T> scaled = value * scale;
    const double addend = kStore ? value : scaled;
    if constexpr (kStore) x[i] = static_cast<T>(scaled);
    lanes[lane] += addend * addend;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

template <class T>
__attribute__((always_inline)) inline int64_t ZerosLoop(const T* x, int64_t n, Compute<T> scale) {
  int64_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) zeros += static_cast<Compute<T>>(x[i]) * scale == 0 ? 1 : 0;
  return zeros;
}

}  // namespace

// The clones are made of plain functions: GCC does not clone templates reliably. The const_cast is
// sound: nothing is stored with kStore false.
#define MUSTER_DEFINE_KERNELS(T)                                                    \
  MUSTER_VECTOR_CLONES double SumOfSquares(const T* x, int64_t n, double scale) {   \
    return SumLoop<T, false>(const_cast<T*>(x), n, static_cast<Compute<T>>(scale)); \
  }                                                                                 \
  MUSTER_VECTOR_CLONES double ScaleAndSumOfSquares(T* x, int64_t n, double scale) { \
    return SumLoop<T, true>(x, n, static_cast<Compute<T>>(scale));                  \
  }                                                                                 \
  MUSTER_VECTOR_CLONES int64_t CountZeros(const T* x, int64_t n, double scale) {    \
    return ZerosLoop<T>(x, n, static_cast<Compute<T>>(scale));                      \
  }

MUSTER_DEFINE_KERNELS(float)
MUSTER_DEFINE_KERNELS(double)
MUSTER_DEFINE_KERNELS(c10::BFloat16)
MUSTER_DEFINE_KERNELS(c10::Half)
#undef MUSTER_DEFINE_KERNELS

}  // namespace muster::kernels
