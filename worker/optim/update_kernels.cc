#include "worker/optim/update_kernels.h"

#include <cmath>

#include "worker/parallel/flat_kernels.h"  // MUSTER_VECTOR_CLONES

namespace muster::kernels {
namespace {

template <class T>
__attribute__((always_inline)) inline void AdamLoop(T* __restrict p, T* __restrict m,
                                                    T* __restrict v, const T* __restrict grad,
                                                    int64_t n, const AdamScalars& s,
                                                    const GradFactors& f) {
  const T lr = s.lr, wd = s.weight_decay, eps = s.eps;
  const T beta1 = s.beta1, one_minus_beta1 = 1 - s.beta1;
  const T beta2 = s.beta2, one_minus_beta2 = 1 - s.beta2;
  const T inverse_c1 = s.inverse_c1, inverse_c2 = s.inverse_c2;
  const T unscale = f.unscale, clip = f.clip;
  for (int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * unscale * clip;
    m[i] = beta1 * m[i] + one_minus_beta1 * g;
    v[i] = beta2 * v[i] + one_minus_beta2 * (g * g);
    const T update = (m[i] * inverse_c1) / (std::sqrt(v[i] * inverse_c2) + eps) + wd * p[i];
    p[i] = p[i] - lr * update;
  }
}

template <class T>
__attribute__((always_inline)) inline void SgdLoop(T* __restrict p, T* __restrict b,
                                                   const T* __restrict grad, int64_t n,
                                                   const SgdScalars& s, const GradFactors& f) {
  const T lr = s.lr, wd = s.weight_decay, momentum = s.momentum;
  const T unscale = f.unscale, clip = f.clip;
  for (int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * unscale * clip;
    b[i] = momentum * b[i] + (g + wd * p[i]);
    p[i] = p[i] - lr * b[i];
  }
}

template <class T>
__attribute__((always_inline)) inline void MuonDirectionLoop(const T* __restrict m,
                                                             const T* __restrict grad,
                                                             T* __restrict d, int64_t n,
                                                             const MuonScalars& s,
                                                             const GradFactors& f) {
  const T beta = s.momentum, one_minus_beta = 1 - s.momentum;
  const T unscale = f.unscale, clip = f.clip;
  for (int64_t i = 0; i < n; ++i) d[i] = beta * m[i] + one_minus_beta * (grad[i] * unscale * clip);
  if (!s.nesterov) return;
  for (int64_t i = 0; i < n; ++i) d[i] = beta * d[i] + one_minus_beta * (grad[i] * unscale * clip);
}

template <class T>
__attribute__((always_inline)) inline void MuonLoop(T* __restrict p, T* __restrict m,
                                                    const T* __restrict grad, const T* __restrict o,
                                                    int64_t n, const MuonScalars& s,
                                                    const GradFactors& f) {
  const T lr = s.lr, decay = 1 - s.lr * s.weight_decay;
  const T beta = s.momentum, one_minus_beta = 1 - s.momentum;
  const T unscale = f.unscale, clip = f.clip;
  for (int64_t i = 0; i < n; ++i) {
    m[i] = beta * m[i] + one_minus_beta * (grad[i] * unscale * clip);
    p[i] = p[i] * decay - lr * o[i];
  }
}

}  // namespace

MUSTER_VECTOR_CLONES void AdamUpdate(float* p, float* m, float* v, const float* grad, int64_t n,
                                     const AdamScalars& s, const GradFactors& f) {
  AdamLoop(p, m, v, grad, n, s, f);
}
MUSTER_VECTOR_CLONES void AdamUpdate(double* p, double* m, double* v, const double* grad, int64_t n,
                                     const AdamScalars& s, const GradFactors& f) {
  AdamLoop(p, m, v, grad, n, s, f);
}
MUSTER_VECTOR_CLONES void SgdUpdate(float* p, float* b, const float* grad, int64_t n,
                                    const SgdScalars& s, const GradFactors& f) {
  SgdLoop(p, b, grad, n, s, f);
}
MUSTER_VECTOR_CLONES void SgdUpdate(double* p, double* b, const double* grad, int64_t n,
                                    const SgdScalars& s, const GradFactors& f) {
  SgdLoop(p, b, grad, n, s, f);
}

MUSTER_VECTOR_CLONES void MuonDirection(const float* m, const float* grad, float* d, int64_t n,
                                        const MuonScalars& s, const GradFactors& f) {
  MuonDirectionLoop(m, grad, d, n, s, f);
}
MUSTER_VECTOR_CLONES void MuonDirection(const double* m, const double* grad, double* d, int64_t n,
                                        const MuonScalars& s, const GradFactors& f) {
  MuonDirectionLoop(m, grad, d, n, s, f);
}
MUSTER_VECTOR_CLONES void MuonUpdate(float* p, float* m, const float* grad, const float* o,
                                     int64_t n, const MuonScalars& s, const GradFactors& f) {
  MuonLoop(p, m, grad, o, n, s, f);
}
MUSTER_VECTOR_CLONES void MuonUpdate(double* p, double* m, const double* grad, const double* o,
                                     int64_t n, const MuonScalars& s, const GradFactors& f) {
  MuonLoop(p, m, grad, o, n, s, f);
}

#define MUSTER_DEFINE_CONVERT(From, To)                                    \
  MUSTER_VECTOR_CLONES void Convert(const From* from, To* to, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);      \
  }
MUSTER_DEFINE_CONVERT(c10::BFloat16, float)
MUSTER_DEFINE_CONVERT(c10::Half, float)
MUSTER_DEFINE_CONVERT(float, c10::BFloat16)
MUSTER_DEFINE_CONVERT(float, c10::Half)
MUSTER_DEFINE_CONVERT(float, double)
#undef MUSTER_DEFINE_CONVERT

}  // namespace muster::kernels
