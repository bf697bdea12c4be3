#include "worker/comm/shm_reduce.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace muster {
namespace {

// What lies between the first and the last part stays in the cache.
constexpr size_t kBlock = 2048;

// Stored as 16 bits, added as float, rounded to nearest even.
struct Bfloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

template <class To, class From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float Load(Bfloat16 x) { return BitCast<float>(uint32_t{x.bits} << 16); }

// Branch-free, so that the loop around it is vectorised.
inline void Store(Bfloat16* to, float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to->bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0u : rounded);
}

// The float unit shifts and rounds the subnormals.
inline float Load(Half x) {
  const uint32_t magnitude = uint32_t{x.bits & 0x7fffu} << 13;
  // 2^112 moves the exponent's bias from 15 to 127; infinities and NaNs need the full exponent.
  float value = BitCast<float>(magnitude) * BitCast<float>(0x77800000u);
  if ((x.bits & 0x7c00) == 0x7c00) value = BitCast<float>(magnitude | 0x7f800000u);
  return BitCast<float>(BitCast<uint32_t>(value) | uint32_t{x.bits & 0x8000u} << 16);
}

inline void Store(Half* to, float value) {
  uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t sign = bits & 0x80000000u;
  bits ^= sign;
  uint32_t result;
  if (bits >= 0x47800000u) {  // 65536 and above, infinities, NaNs
    result = bits > 0x7f800000u ? 0x7e00 : 0x7c00;
  } else if (bits < 0x38800000u) {  // subnormal: adding 0.5 aligns and rounds
    result = BitCast<uint32_t>(BitCast<float>(bits) + 0.5f) - 0x3f000000u;
  } else {
    const uint32_t odd = bits >> 13 & 1;
    result = (bits - 0x38000000u + 0xfff + odd) >> 13;
  }
  to->bits = static_cast<uint16_t>(result | sign >> 16);
}

template <class T>
inline T Load(T x) {
  return x;
}
template <class T>
inline void Store(T* to, T value) {
  *to = value;
}

struct Sum {
  template <class T>
  static T Do(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) {
      return a || b;
    } else if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // wraps
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  static T Do(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class T>
  static T Do(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

template <class T, class Op>
[[gnu::always_inline]] inline void Pair(T* out, const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; ++i) Store(&out[i], Op::Do(Load(a[i]), Load(b[i])));
}

#if defined(__x86_64__)
template <class T, class Op>
[[gnu::target("avx2")]] void PairAvx2(T* out, const T* a, const T* b, size_t count) {
  Pair<T, Op>(out, a, b, count);
}
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

template <class Op>
[[gnu::target("avx2,f16c")]] void PairAvx2Half(Half* out, const Half* a, const Half* b,
                                               size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    alignas(32) float x[8], y[8];
    _mm256_store_ps(x, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + i))));
    _mm256_store_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + i))));
    for (int j = 0; j < 8; ++j) x[j] = Op::Do(x[j], y[j]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_load_ps(x), _MM_FROUND_TO_NEAREST_INT));
  }
  Pair<Half, Op>(out + i, a + i, b + i, count - i);
}
#endif

template <class T, class Op>
void Two(T* out, const T* a, const T* b, size_t count) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if constexpr (std::is_same_v<T, Half>) {
    static const bool f16c = HasF16c();
    if (avx2 && f16c) return PairAvx2Half<Op>(out, a, b, count);
  } else {
    if (avx2) return PairAvx2<T, Op>(out, a, b, count);
  }
#endif
  Pair<T, Op>(out, a, b, count);
}

template <class T, class Op>
void Reduce(void* out, const void* const* parts, int num_parts, size_t count) {
  T between[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = count - begin < kBlock ? count - begin : kBlock;
    const auto part = [&](int i) { return static_cast<const T*>(parts[i]) + begin; };
    const T* left = part(0);
    for (int i = 1; i < num_parts; ++i) {
      T* const to = i + 1 == num_parts ? static_cast<T*>(out) + begin : between;
      Two<T, Op>(to, left, part(i), n);
      left = to;
    }
  }
}

template <class T>
ShmReduceFn Find(ShmReduceOp op) {
  switch (op) {
    case ShmReduceOp::kSum:
      return Reduce<T, Sum>;
    case ShmReduceOp::kMax:
      return Reduce<T, Max>;
    case ShmReduceOp::kMin:
      return Reduce<T, Min>;
  }
  return nullptr;
}

}  // namespace

ShmReduceFn FindShmReduce(ShmDtype dtype, ShmReduceOp op) {
  switch (dtype) {
    case ShmDtype::kFloat:
      return Find<float>(op);
    case ShmDtype::kDouble:
      return Find<double>(op);
    case ShmDtype::kHalf:
      return Find<Half>(op);
    case ShmDtype::kBfloat16:
      return Find<Bfloat16>(op);
    case ShmDtype::kInt64:
      return Find<int64_t>(op);
    case ShmDtype::kInt32:
      return Find<int32_t>(op);
    case ShmDtype::kInt8:
      return Find<int8_t>(op);
    case ShmDtype::kUint8:
      return Find<uint8_t>(op);
    case ShmDtype::kBool:
      return Find<bool>(op);
  }
  return nullptr;
}

}  // namespace muster
