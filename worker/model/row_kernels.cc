#include "worker/model/row_kernels.h"

#include "worker/model/row_math.h"
#include "worker/parallel/flat_kernels.h"

namespace muster::kernels {
namespace {

// Independent partial results, so that sums and maxima vectorise; element i belongs to lane
// i % kLanes whatever the vector width is.
constexpr int kLanes = 16;

template <class A, class Value>
MUSTER_INLINE A SumOf(int64_t n, Value value) {
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += value(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <class T>
MUSTER_INLINE Acc<T> MaxOf(const T* z, int64_t n) {
  using A = Acc<T>;
  A lanes[kLanes];
  for (A& lane : lanes) lane = static_cast<A>(z[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const A v = static_cast<A>(z[i + lane]);
      lanes[lane] = v > lanes[lane] ? v : lanes[lane];
    }
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], static_cast<A>(z[i]));
  for (int lane = 1; lane < kLanes; ++lane) lanes[0] = std::max(lanes[0], lanes[lane]);
  return lanes[0];
}

template <class T>
MUSTER_INLINE void FinishSumRow(const AddNormRows<T>& a, int64_t offset, int64_t cols) {
  using A = Acc<T>;
  const T* residual = a.residual + offset;
  const T* branch = a.branch + offset;
  T* x = a.x + offset;
  if (a.mask != nullptr) {
    const T* mask = a.mask + offset;
    for (int64_t j = 0; j < cols; ++j) {
      const A b = static_cast<A>(branch[j]) + (a.bias ? static_cast<A>(a.bias[j]) : A(0));
      x[j] = static_cast<T>(static_cast<A>(residual[j]) + b * static_cast<A>(mask[j]));
    }
  } else if (a.bias != nullptr) {
    for (int64_t j = 0; j < cols; ++j) {
      x[j] = static_cast<T>(static_cast<A>(residual[j]) +
                            (static_cast<A>(branch[j]) + static_cast<A>(a.bias[j])));
    }
  } else {
    for (int64_t j = 0; j < cols; ++j) {
      x[j] = static_cast<T>(static_cast<A>(residual[j]) + static_cast<A>(branch[j]));
    }
  }
}

template <class T>
MUSTER_INLINE void AddNormLoop(const AddNormRows<T>& a, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  const A width = static_cast<A>(cols);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t offset = i * cols;
    if (a.branch != nullptr) FinishSumRow(a, offset, cols);
    const T* x = (a.branch != nullptr ? a.x : a.residual) + offset;
    T* y = a.y + offset;
    A mean = 0;
    if (a.mean != nullptr) {
      mean = SumOf<A>(cols, [&](int64_t j) { return static_cast<A>(x[j]); }) / width;
      a.mean[i] = mean;
    }
    // Squares about the mean, in a second pass over the cached row: no cancellation.
    const A variance = SumOf<A>(cols,
                                [&](int64_t j) {
                                  const A d = static_cast<A>(x[j]) - mean;
                                  return d * d;
                                }) /
                       width;
    const A rstd = A(1) / std::sqrt(variance + static_cast<A>(a.epsilon));
    a.rstd[i] = rstd;
    if (a.beta != nullptr) {
      for (int64_t j = 0; j < cols; ++j) {
        y[j] = static_cast<T>((static_cast<A>(x[j]) - mean) * rstd * static_cast<A>(a.weight[j]) +
                              static_cast<A>(a.beta[j]));
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) {
        y[j] = static_cast<T>(static_cast<A>(x[j]) * rstd * static_cast<A>(a.weight[j]));
      }
    }
  }
}

template <class T>
MUSTER_INLINE void FinishAddLoop(const AddNormRows<T>& a, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) FinishSumRow(a, i * cols, cols);
}

// What NormBackwardLoop does after dx: the same roundings and the same order of sums.
template <class T>
MUSTER_INLINE void FinishAddBackwardLoop(const T* dx, const T* mask, T* dbranch, Acc<T>* dbias,
                                         int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i) {
    const T* to_sum = dx + i * cols;
    if (mask != nullptr) {
      const T* keep = mask + i * cols;
      T* out = dbranch + i * cols;
      for (int64_t j = 0; j < cols; ++j) {
        out[j] = static_cast<T>(static_cast<A>(to_sum[j]) * static_cast<A>(keep[j]));
      }
      to_sum = out;
    }
    if (dbias == nullptr) continue;
    for (int64_t j = 0; j < cols; ++j) dbias[j] += static_cast<A>(to_sum[j]);
  }
}

// With h = (x - mean) rstd and g = w dy: dx = rstd (g - mean(g) - h mean(g h)); RMSNorm has no
// mean(g).
template <class T>
MUSTER_INLINE void NormBackwardLoop(const NormBackwardRows<T>& a, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  const A width = static_cast<A>(cols);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t offset = i * cols;
    const T* dy = a.dy + offset;
    const T* x = a.x + offset;
    T* dx = a.dx + offset;
    const A mean = a.mean != nullptr ? a.mean[i] : A(0);
    const A rstd = a.rstd[i];
    const auto normed = [&](int64_t j) { return (static_cast<A>(x[j]) - mean) * rstd; };
    const auto scaled = [&](int64_t j) {
      return static_cast<A>(dy[j]) * static_cast<A>(a.weight[j]);
    };
    const A mean_gh = SumOf<A>(cols, [&](int64_t j) { return scaled(j) * normed(j); }) / width;
    const A mean_g = a.mean != nullptr ? SumOf<A>(cols, scaled) / width : A(0);
    for (int64_t j = 0; j < cols; ++j) a.dweight[j] += static_cast<A>(dy[j]) * normed(j);
    if (a.dbeta != nullptr) {
      for (int64_t j = 0; j < cols; ++j) a.dbeta[j] += static_cast<A>(dy[j]);
    }
    if (a.dx_in != nullptr) {
      const T* dx_in = a.dx_in + offset;
      for (int64_t j = 0; j < cols; ++j) {
        dx[j] = static_cast<T>((scaled(j) - mean_g - normed(j) * mean_gh) * rstd +
                               static_cast<A>(dx_in[j]));
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) {
        dx[j] = static_cast<T>((scaled(j) - mean_g - normed(j) * mean_gh) * rstd);
      }
    }
    const T* to_sum = dx;
    if (a.mask != nullptr && a.dbranch != nullptr) {
      const T* mask = a.mask + offset;
      T* dbranch = a.dbranch + offset;
      for (int64_t j = 0; j < cols; ++j) {
        dbranch[j] = static_cast<T>(static_cast<A>(dx[j]) * static_cast<A>(mask[j]));
      }
      to_sum = dbranch;
    }
    if (a.dbias != nullptr) {
      for (int64_t j = 0; j < cols; ++j) a.dbias[j] += static_cast<A>(to_sum[j]);
    }
  }
}

template <class A>
MUSTER_INLINE A Gelu(A u) {
  return u * NormalCdf(u, Exp(A(-0.5) * u * u));
}

// d gelu = Phi(u) + u phi(u)
template <class A>
MUSTER_INLINE A GeluSlope(A u) {
  const A e = Exp(A(-0.5) * u * u);
  return NormalCdf(u, e) + u * (A(0.39894228040143267794) * e);
}

template <class A>
MUSTER_INLINE A Sigmoid(A u) {
  return A(1) / (A(1) + Exp(-u));
}

template <class T>
MUSTER_INLINE void BiasGeluLoop(const T* x, const T* bias, T* y, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, x += cols, y += cols) {
    if (bias != nullptr) {
      for (int64_t j = 0; j < cols; ++j) {
        y[j] = static_cast<T>(Gelu(static_cast<A>(x[j]) + static_cast<A>(bias[j])));
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) y[j] = static_cast<T>(Gelu(static_cast<A>(x[j])));
    }
  }
}

template <class T>
MUSTER_INLINE void BiasGeluBackwardLoop(const T* dy, const T* x, const T* bias, T* dx, Acc<T>* sums,
                                        int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, x += cols, dy += cols, dx += cols) {
    if (bias != nullptr) {
      for (int64_t j = 0; j < cols; ++j) {
        const A u = static_cast<A>(x[j]) + static_cast<A>(bias[j]);
        dx[j] = static_cast<T>(static_cast<A>(dy[j]) * GeluSlope(u));
      }
    } else {
      for (int64_t j = 0; j < cols; ++j) {
        dx[j] = static_cast<T>(static_cast<A>(dy[j]) * GeluSlope(static_cast<A>(x[j])));
      }
    }
    if (sums == nullptr) continue;
    for (int64_t j = 0; j < cols; ++j) sums[j] += static_cast<A>(dx[j]);
  }
}

template <class T>
MUSTER_INLINE void BiasSwigluLoop(const T* x, const T* bias, T* y, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, x += 2 * cols, y += cols) {
    for (int64_t j = 0; j < cols; ++j) {
      const A a = static_cast<A>(x[j]) + (bias ? static_cast<A>(bias[j]) : A(0));
      const A b = static_cast<A>(x[cols + j]) + (bias ? static_cast<A>(bias[cols + j]) : A(0));
      y[j] = static_cast<T>(a * Sigmoid(a) * b);
    }
  }
}

template <class T>
MUSTER_INLINE void BiasSwigluBackwardLoop(const T* dy, const T* x, const T* bias, T* dx,
                                          Acc<T>* sums, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, x += 2 * cols, dy += cols, dx += 2 * cols) {
    for (int64_t j = 0; j < cols; ++j) {
      const A a = static_cast<A>(x[j]) + (bias ? static_cast<A>(bias[j]) : A(0));
      const A b = static_cast<A>(x[cols + j]) + (bias ? static_cast<A>(bias[cols + j]) : A(0));
      const A s = Sigmoid(a), g = static_cast<A>(dy[j]);
      dx[j] = static_cast<T>(g * b * (s * (A(1) + a * (A(1) - s))));
      dx[cols + j] = static_cast<T>(g * (a * s));
    }
    if (sums == nullptr) continue;
    for (int64_t j = 0; j < 2 * cols; ++j) sums[j] += static_cast<A>(dx[j]);
  }
}

template <class T>
MUSTER_INLINE void CrossEntropyLoop(const T* z, const int64_t* labels, int64_t begin, Acc<T>* lse,
                                    Acc<T>* loss, int64_t rows, int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, z += cols) {
    const A top = MaxOf(z, cols);
    const A sum = SumOf<A>(cols, [&](int64_t j) { return Exp(static_cast<A>(z[j]) - top); });
    lse[i] = top + std::log(sum);
    const int64_t label = labels[i] - begin;
    const bool here = label >= 0 && label < cols;
    // Both differences from the maximum are small: better than lse - z.
    loss[i] = here ? std::log(sum) - (static_cast<A>(z[label]) - top) : A(0);
  }
}

template <class T>
MUSTER_INLINE void CrossEntropyBackwardLoop(T* z, const int64_t* labels, int64_t begin,
                                            const Acc<T>* lse, const Acc<T>* dloss, int64_t rows,
                                            int64_t cols) {
  using A = Acc<T>;
  for (int64_t i = 0; i < rows; ++i, z += cols) {
    const A shift = lse[i], scale = dloss[i];
    const int64_t label = labels[i] - begin;
    const bool here = label >= 0 && label < cols;
    const A at_label = here ? (Exp(static_cast<A>(z[label]) - shift) - A(1)) * scale : A(0);
    for (int64_t j = 0; j < cols; ++j) {
      z[j] = static_cast<T>(Exp(static_cast<A>(z[j]) - shift) * scale);
    }
    if (here) z[label] = static_cast<T>(at_label);
  }
}

}  // namespace

#define MUSTER_DEFINE_ROW_KERNELS(T)                                                              \
  MUSTER_VECTOR_CLONES void AddNorm(const AddNormRows<T>& a, int64_t rows, int64_t cols) {        \
    AddNormLoop<T>(a, rows, cols);                                                                \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void FinishAdd(const AddNormRows<T>& a, int64_t rows, int64_t cols) {      \
    FinishAddLoop<T>(a, rows, cols);                                                              \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void FinishAddBackward(const T* dx, const T* mask, T* dbranch,             \
                                              Acc<T>* dbias, int64_t rows, int64_t cols) {        \
    FinishAddBackwardLoop<T>(dx, mask, dbranch, dbias, rows, cols);                               \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void NormBackward(const NormBackwardRows<T>& a, int64_t rows,              \
                                         int64_t cols) {                                          \
    NormBackwardLoop<T>(a, rows, cols);                                                           \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void BiasGelu(const T* x, const T* bias, T* y, int64_t rows,               \
                                     int64_t cols) {                                              \
    BiasGeluLoop<T>(x, bias, y, rows, cols);                                                      \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void BiasGeluBackward(const T* dy, const T* x, const T* bias, T* dx,       \
                                             Acc<T>* sums, int64_t rows, int64_t cols) {          \
    BiasGeluBackwardLoop<T>(dy, x, bias, dx, sums, rows, cols);                                   \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void BiasSwiglu(const T* x, const T* bias, T* y, int64_t rows,             \
                                       int64_t cols) {                                            \
    BiasSwigluLoop<T>(x, bias, y, rows, cols);                                                    \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void BiasSwigluBackward(const T* dy, const T* x, const T* bias, T* dx,     \
                                               Acc<T>* sums, int64_t rows, int64_t cols) {        \
    BiasSwigluBackwardLoop<T>(dy, x, bias, dx, sums, rows, cols);                                 \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void CrossEntropy(const T* z, const int64_t* labels, int64_t begin,        \
                                         Acc<T>* lse, Acc<T>* loss, int64_t rows, int64_t cols) { \
    CrossEntropyLoop<T>(z, labels, begin, lse, loss, rows, cols);                                 \
  }                                                                                               \
  MUSTER_VECTOR_CLONES void CrossEntropyBackward(T* z, const int64_t* labels, int64_t begin,      \
                                                 const Acc<T>* lse, const Acc<T>* dloss,          \
                                                 int64_t rows, int64_t cols) {                    \
    CrossEntropyBackwardLoop<T>(z, labels, begin, lse, dloss, rows, cols);                        \
  }
MUSTER_DEFINE_ROW_KERNELS(float)
MUSTER_DEFINE_ROW_KERNELS(double)
MUSTER_DEFINE_ROW_KERNELS(c10::BFloat16)
MUSTER_DEFINE_ROW_KERNELS(c10::Half)
#undef MUSTER_DEFINE_ROW_KERNELS

}  // namespace muster::kernels
