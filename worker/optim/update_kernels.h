// The optimizers' arithmetic over contiguous elements: no tensors, no threads. Compiled as vector
// code for the machine it runs on; the bits are the same on every CPU (no contracted multiply-add).
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace muster::kernels {

// All updates use g = (grad * unscale) * clip, each product rounded as if it had been stored:
// unscaling and clipping then cost no pass of their own over the gradients.
struct GradFactors {
  double unscale = 1;  // 1 / loss scale
  double clip = 1;
};

// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2; reference 7.1):
//   m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
//   p <- p - lr ( (m / c1) / (sqrt(v / c2) + eps) + wd p ),  c1 = 1 - beta1^t, c2 = 1 - beta2^t
// (the divisions by c1 and c2 are products with their reciprocals).
struct AdamScalars {
  double lr = 0, weight_decay = 0, beta1 = 0, beta2 = 0, eps = 0;
  double inverse_c1 = 1, inverse_c2 = 1;
};
void AdamUpdate(float* p, float* m, float* v, const float* grad, int64_t n, const AdamScalars& s,
                const GradFactors& f);
void AdamUpdate(double* p, double* m, double* v, const double* grad, int64_t n,
                const AdamScalars& s, const GradFactors& f);

// SGD as torch.optim.SGD (dampening 0, no Nesterov), with coupled weight decay:
//   b <- momentum b + (g + wd p);  p <- p - lr b
struct SgdScalars {
  double lr = 0, weight_decay = 0, momentum = 0;
};
void SgdUpdate(float* p, float* b, const float* grad, int64_t n, const SgdScalars& s,
               const GradFactors& f);
void SgdUpdate(double* p, double* b, const double* grad, int64_t n, const SgdScalars& s,
               const GradFactors& f);

// Muon (its formula: muon.h). `o` is the orthogonalised direction with its scale.
struct MuonScalars {
  double lr = 0, weight_decay = 0, momentum = 0;
  bool nesterov = false;
};
// d <- beta m + (1 - beta) g, and with Nesterov d <- beta d + (1 - beta) g.
void MuonDirection(const float* m, const float* grad, float* d, int64_t n, const MuonScalars& s,
                   const GradFactors& f);
void MuonDirection(const double* m, const double* grad, double* d, int64_t n, const MuonScalars& s,
                   const GradFactors& f);
// m <- beta m + (1 - beta) g;  p <- p (1 - lr wd) - lr o
void MuonUpdate(float* p, float* m, const float* grad, const float* o, int64_t n,
                const MuonScalars& s, const GradFactors& f);
void MuonUpdate(double* p, double* m, const double* grad, const double* o, int64_t n,
                const MuonScalars& s, const GradFactors& f);

// to <- from, rounded to nearest even.
void Convert(const c10::BFloat16* from, float* to, int64_t n);
void Convert(const c10::Half* from, float* to, int64_t n);
void Convert(const float* from, c10::BFloat16* to, int64_t n);
void Convert(const float* from, c10::Half* to, int64_t n);
void Convert(const float* from, double* to, int64_t n);

}  // namespace muster::kernels
