// Loops over rows of plain memory: what the model does between matrix products, each in one pass.
// Sequential; the callers (row_blocks.h) spread blocks of rows over threads. Arrays are dense and
// row-major; T is float, double, c10::BFloat16 or c10::Half; sums and statistics are in Acc<T>:
// double for double, otherwise float.
#pragma once

#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace muster::kernels {

template <class T>
using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Pointers that may be null say so. `sums` arguments are added to.
template <class T>
struct AddNormRows {
  const T* residual;
  const T* branch;  // null: x is the residual, and is not written
  const T* bias;    // null: none
  const T* mask;    // null: no dropout
  const T* weight;
  const T* beta;  // null: RMSNorm
  double epsilon;
  T* x;
  T* y;
  Acc<T>* mean;  // null: RMSNorm
  Acc<T>* rstd;
};
template <class T>
struct NormBackwardRows {
  const T* dy;
  const T* dx_in;  // null: none
  const T* x;
  const T* mask;  // null: no dropout
  const T* weight;
  const Acc<T>* mean;  // null: RMSNorm
  const Acc<T>* rstd;
  T* dx;
  T* dbranch;       // null: not wanted (equal to dx without a mask)
  Acc<T>* dweight;  // sums (cols)
  Acc<T>* dbeta;    // null: RMSNorm
  Acc<T>* dbias;    // null: not wanted
};

#define MUSTER_DECLARE_ROW_KERNELS(T)                                                              \
  /* x = residual + mask * (branch + bias); y = norm(x) */                                         \
  void AddNorm(const AddNormRows<T>& a, int64_t rows, int64_t cols);                               \
  /* AddNorm's sum alone: reads residual, branch, bias and mask, writes x */                       \
  void FinishAdd(const AddNormRows<T>& a, int64_t rows, int64_t cols);                             \
  /* dbranch = mask * dx (null: no mask, dbranch is dx); dbias (or null) += dbranch over rows */   \
  void FinishAddBackward(const T* dx, const T* mask, T* dbranch, Acc<T>* dbias, int64_t rows,      \
                         int64_t cols);                                                            \
  void NormBackward(const NormBackwardRows<T>& a, int64_t rows, int64_t cols);                     \
  /* y = gelu(x + bias) */                                                                         \
  void BiasGelu(const T* x, const T* bias, T* y, int64_t rows, int64_t cols);                      \
  /* dx = gelu'(x + bias) dy; sums (cols, or null) += dx over rows */                              \
  void BiasGeluBackward(const T* dy, const T* x, const T* bias, T* dx, Acc<T>* sums, int64_t rows, \
                        int64_t cols);                                                             \
  /* y (cols) = silu(a) b, [a, b] = x + bias (2 cols) */                                           \
  void BiasSwiglu(const T* x, const T* bias, T* y, int64_t rows, int64_t cols);                    \
  void BiasSwigluBackward(const T* dy, const T* x, const T* bias, T* dx, Acc<T>* sums,             \
                          int64_t rows, int64_t cols);                                             \
  /* Column j stands for token begin + j. lse = ln sum exp(z); loss = lse - z of the label, or 0   \
     where the label has no column here */                                                         \
  void CrossEntropy(const T* z, const int64_t* labels, int64_t begin, Acc<T>* lse, Acc<T>* loss,   \
                    int64_t rows, int64_t cols);                                                   \
  /* z <- (exp(z - lse) - onehot(label)) * dloss */                                                \
  void CrossEntropyBackward(T* z, const int64_t* labels, int64_t begin, const Acc<T>* lse,         \
                            const Acc<T>* dloss, int64_t rows, int64_t cols);
MUSTER_DECLARE_ROW_KERNELS(float)
MUSTER_DECLARE_ROW_KERNELS(double)
MUSTER_DECLARE_ROW_KERNELS(c10::BFloat16)
MUSTER_DECLARE_ROW_KERNELS(c10::Half)
#undef MUSTER_DECLARE_ROW_KERNELS

}  // namespace muster::kernels
