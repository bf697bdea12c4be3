#include "worker/cuda/row_kernels.h"
#include "worker/cuda/vector_load.cuh"

namespace muster::cuda {
namespace {

// Threads of a block that together hold a row, each kPacks packs of 8 columns.
int ThreadsFor(int64_t cols) {
  const int64_t packs = cols / kVector;
  return static_cast<int>(packs >= 256 ? 256 : (packs + 31) / 32 * 32);
}

int PacksFor(int64_t cols) {
  const int threads = ThreadsFor(cols);
  return static_cast<int>((cols / kVector + threads - 1) / threads);
}

// One block a row, which stays in registers.
template <class T, int kPacks, bool kLayerNorm>
__global__ void ForwardKernel(NormArgs a) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x, base = row * a.cols;
  const auto typed = [](const void* p) { return static_cast<const T*>(p); };
  float x[kPacks][kVector];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
    if (col >= a.cols) {
      for (int i = 0; i < kVector; ++i) x[p][i] = 0;
      continue;
    }
    Load(typed(a.residual) + base + col, x[p]);
    if (a.branch != nullptr) {
      float branch[kVector], bias[kVector], mask[kVector];
      Load(typed(a.branch) + base + col, branch);
      LoadOrZero(typed(a.bias), col, bias);
      if (a.mask != nullptr) Load(typed(a.mask) + base + col, mask);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float added = branch[i] + bias[i];
        // Rounded as it is stored: backward sees the same x.
        x[p][i] = ToFloat(FromFloat<T>(x[p][i] + (a.mask != nullptr ? added * mask[i] : added)));
      }
      Store(static_cast<T*>(a.x) + base + col, x[p]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += x[p][i];
  }
  const float width = static_cast<float>(a.cols);
  const float mean = kLayerNorm ? BlockSum(sum, scratch) / width : 0;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if ((int64_t{p} * blockDim.x + threadIdx.x) * kVector >= a.cols) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += (x[p][i] - mean) * (x[p][i] - mean);
  }
  const float rstd = rsqrtf(BlockSum(squares, scratch) / width + a.epsilon);
  if (threadIdx.x == 0) {
    if (kLayerNorm) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
    if (col >= a.cols) continue;
    float weight[kVector], beta[kVector];
    Load(typed(a.weight) + col, weight);
    LoadOrZero(typed(a.beta), col, beta);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[p][i] = (x[p][i] - mean) * rstd * weight[i] + beta[i];
    Store(static_cast<T*>(a.y) + base + col, x[p]);
  }
}

// A block takes rows_a_block rows one after another and keeps the sums of its columns.
// dx = r (g - mean(g) - n mean(g n)) + dx_in, with n = (x - mean) r and g = w dy; RMSNorm without
// the mean(g).
template <class T, int kPacks, bool kLayerNorm>
__global__ void BackwardKernel(NormBackwardArgs a, int64_t rows_a_block) {
  __shared__ float scratch[32];
  const auto typed = [](const void* p) { return static_cast<const T*>(p); };
  float dweight[kPacks][kVector] = {}, dbeta[kPacks][kVector] = {}, dbias[kPacks][kVector] = {};
  float weight[kPacks][kVector] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
    if (col < a.cols) Load(typed(a.weight) + col, weight[p]);
  }
  const float width = static_cast<float>(a.cols);
  const int64_t first = blockIdx.x * rows_a_block;
  const int64_t last = min(a.rows, first + rows_a_block);
  for (int64_t row = first; row < last; ++row) {
    const int64_t base = row * a.cols;
    const float mean = kLayerNorm ? a.mean[row] : 0, rstd = a.rstd[row];
    float g[kPacks][kVector], n[kPacks][kVector];
    float sum_g = 0, sum_gn = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
      if (col >= a.cols) continue;
      Load(typed(a.dy) + base + col, g[p]);
      Load(typed(a.x) + base + col, n[p]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        n[p][i] = (n[p][i] - mean) * rstd;
        dweight[p][i] += g[p][i] * n[p][i];
        dbeta[p][i] += g[p][i];
        g[p][i] *= weight[p][i];
        sum_g += g[p][i];
        sum_gn += g[p][i] * n[p][i];
      }
    }
    const float mean_g = kLayerNorm ? BlockSum(sum_g, scratch) / width : 0;
    const float mean_gn = BlockSum(sum_gn, scratch) / width;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
      if (col >= a.cols) continue;
      float more[kVector];
      LoadOrZero(typed(a.dx_in), base + col, more);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        g[p][i] = rstd * (g[p][i] - mean_g - n[p][i] * mean_gn) + more[i];
      }
      Store(static_cast<T*>(a.dx) + base + col, g[p]);
      if (a.mask != nullptr) {
        float mask[kVector];
        Load(typed(a.mask) + base + col, mask);
#pragma unroll
        for (int i = 0; i < kVector; ++i) g[p][i] *= mask[i];
        if (a.dbranch != nullptr) Store(static_cast<T*>(a.dbranch) + base + col, g[p]);
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) dbias[p][i] += g[p][i];
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (int64_t{p} * blockDim.x + threadIdx.x) * kVector;
    if (col >= a.cols) continue;
    const int64_t at = blockIdx.x * a.cols + col;
    Store(a.dweight + at, dweight[p]);
    if (a.dbeta != nullptr) Store(a.dbeta + at, dbeta[p]);
    if (a.dbias != nullptr) Store(a.dbias + at, dbias[p]);
  }
}

// Calls launch(T{}, integral constants of packs and kind).
template <int kPacks, class Args, class Launch>
void ForKind(const Args& a, Launch launch) {
  ForType(static_cast<int>(a.type), [&](auto t) {
    if (a.layer_norm) {
      launch.template operator()<decltype(t), kPacks, true>();
    } else {
      launch.template operator()<decltype(t), kPacks, false>();
    }
  });
}

template <class Args, class Launch>
void ForShape(const Args& a, Launch launch) {
  const int packs = PacksFor(a.cols);
  if (packs <= 1) return ForKind<1>(a, launch);
  if (packs == 2) return ForKind<2>(a, launch);
  ForKind<4>(a, launch);
}

struct LaunchForward {
  const NormArgs& a;
  cudaStream_t stream;
  template <class T, int kPacks, bool kLayerNorm>
  void operator()() const {
    ForwardKernel<T, kPacks, kLayerNorm>
        <<<static_cast<unsigned>(a.rows), ThreadsFor(a.cols), 0, stream>>>(a);
  }
};

struct LaunchBackward {
  const NormBackwardArgs& a;
  cudaStream_t stream;
  template <class T, int kPacks, bool kLayerNorm>
  void operator()() const {
    const int parts = NumNormPartials(a.rows);
    BackwardKernel<T, kPacks, kLayerNorm>
        <<<parts, ThreadsFor(a.cols), 0, stream>>>(a, (a.rows + parts - 1) / parts);
  }
};

}  // namespace

int NumNormPartials(int64_t rows) {
  return static_cast<int>(rows < 1 ? 1 : (rows < 1024 ? rows : 1024));
}

int Norm(const NormArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  ForShape(a, LaunchForward{a, static_cast<cudaStream_t>(stream)});
  return cudaGetLastError();
}

int NormBackward(const NormBackwardArgs& a, void* stream) {
  if (a.rows == 0) return 0;
  ForShape(a, LaunchBackward{a, static_cast<cudaStream_t>(stream)});
  return cudaGetLastError();
}

}  // namespace muster::cuda
