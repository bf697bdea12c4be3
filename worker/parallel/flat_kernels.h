// Loops over contiguous elements that the flat buffers need: no tensors, no threads. Compiled with
// vector code for the machine it runs on (flat_kernels.cc); results do not depend on the
// instruction set, since the order of every sum is fixed and no multiply-add is contracted.
#pragma once

#include <cstdint>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

// Variants for newer x86 CPUs, chosen when the program starts. Off under the sanitizers, whose
// runtime is not up yet when the choice is made, and in compilers without it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MUSTER_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define MUSTER_VECTOR_CLONES
#endif

namespace muster::kernels {

// Sum of (scale * x)^2 over x[0, n). The product is rounded to fp32 (fp64 for double) as if it had
// been stored; squares are added in fp64.
double SumOfSquares(const float* x, int64_t n, double scale);
double SumOfSquares(const double* x, int64_t n, double scale);
double SumOfSquares(const c10::BFloat16* x, int64_t n, double scale);
double SumOfSquares(const c10::Half* x, int64_t n, double scale);

// x <- scale * x; returns the sum of x^2 of the values before.
double ScaleAndSumOfSquares(float* x, int64_t n, double scale);
double ScaleAndSumOfSquares(double* x, int64_t n, double scale);
double ScaleAndSumOfSquares(c10::BFloat16* x, int64_t n, double scale);
double ScaleAndSumOfSquares(c10::Half* x, int64_t n, double scale);

// How many of scale * x are zero.
int64_t CountZeros(const float* x, int64_t n, double scale);
int64_t CountZeros(const double* x, int64_t n, double scale);
int64_t CountZeros(const c10::BFloat16* x, int64_t n, double scale);
int64_t CountZeros(const c10::Half* x, int64_t n, double scale);

}  // namespace muster::kernels
