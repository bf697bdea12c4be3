// What the model does between matrix products, as CUDA kernels over plain memory: each in one or
// two passes. No torch here, so that nvcc sees no torch header. Arrays are dense, row-major,
// aligned to 16 bytes; rows of `cols` elements, a multiple of 8. Sums and statistics are fp32. Sums
// over rows are in a fixed order: the same input gives the same bits. All launch on `stream` (a
// cudaStream_t) and return the launch's error (cudaError_t), 0 when it went.
#pragma once

#include <cstdint>

namespace muster::cuda {

enum class Type { kFloat, kBFloat16, kHalf };

// How many partial sums (rows of fp32, to be added up by the caller) the backward kernels write.
int NumPartials(int64_t rows);
int NumNormPartials(int64_t rows);
// Widest row of the norms.
inline constexpr int64_t kMaxNormCols = 8192;

struct CrossEntropyArgs {
  Type type;
  const void* logits;  // (rows, cols)
  const int64_t* labels;
  int64_t begin;       // the token that column 0 stands for
  int64_t rows, cols;  // cols: of any number
  float* lse;          // (rows)
  float* loss;         // (rows): lse - logit of the label; 0 where the label has no column here
};
int CrossEntropy(const CrossEntropyArgs& args, void* stream);

struct CrossEntropyBackwardArgs {
  Type type;
  void* logits;  // become (exp(logits - lse) - onehot) * dloss
  const int64_t* labels;
  int64_t begin;
  const float* lse;
  const float* dloss;
  int64_t rows, cols;
};
int CrossEntropyBackward(const CrossEntropyBackwardArgs& args, void* stream);

struct ActivationArgs {
  Type type;
  bool swiglu;       // else gelu (exact)
  const void* x;     // (rows, cols), or (rows, 2 cols) for swiglu
  const void* bias;  // as wide as x; null: none
  void* y;           // (rows, cols)
  int64_t rows, cols;
};
int Activation(const ActivationArgs& args, void* stream);

struct ActivationBackwardArgs {
  Type type;
  bool swiglu;
  const void* dy;  // (rows, cols)
  const void* x;
  const void* bias;
  void* dx;         // like x
  float* partials;  // (NumPartials, width of x): sums of dx; null: not wanted
  int64_t rows, cols;
};
int ActivationBackward(const ActivationBackwardArgs& args, void* stream);

struct NormArgs {
  Type type;
  bool layer_norm;       // else RMSNorm
  const void* residual;  // (rows, cols)
  const void* branch;    // null: x is the residual and is not written
  const void* bias;      // of the branch; null: none
  const void* mask;      // of the branch; null: none
  const void* weight;
  const void* beta;  // LayerNorm's; null for RMSNorm
  float epsilon;
  void* x;      // residual + mask * (branch + bias)
  void* y;      // its norm
  float* mean;  // (rows); null for RMSNorm
  float* rstd;  // (rows)
  int64_t rows, cols;
};
int Norm(const NormArgs& args, void* stream);

struct NormBackwardArgs {
  Type type;
  bool layer_norm;
  const void* dy;
  const void* dx_in;  // null: none
  const void* x;
  const void* mask;  // null: none
  const void* weight;
  const float* mean;
  const float* rstd;
  void* dx;
  void* dbranch;   // dx * mask; null: not wanted
  float* dweight;  // (NumNormPartials, cols) each
  float* dbeta;    // null: not wanted
  float* dbias;    // sums of dx * mask; null: not wanted
  int64_t rows, cols;
};
int NormBackward(const NormBackwardArgs& args, void* stream);

}  // namespace muster::cuda
