#include "worker/model/blocked_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "worker/model/attention_kernels.h"

namespace muster {
namespace {

using Bf16 = c10::BFloat16;
using kernels::BfPair;

constexpr int64_t kBlock = 64;     // queries of a forward block, keys of a backward block
constexpr int64_t kChunk = 256;    // queries of a backward block: its scores stay in the L2 cache
constexpr int64_t kMaxSeq = 4096;  // a forward block's scores are (64, S) fp32

struct Sizes {
  explicit Sizes(const AttentionTensors& in)
      : batch(in.q.size(0)),
        seq(in.q.size(1)),
        heads(in.q.size(2)),
        groups(in.k.size(2)),
        channels(in.q.size(3)),
        scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(channels)))) {}
  const int64_t batch, seq, heads, groups, channels;
  const float scale;
};

// One head's rows: (S, D), D dense.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
  T* at(int64_t row) const { return data + row * stride; }
};
Rows<Bf16> HeadRows(const at::Tensor& x, int64_t sample, int64_t head) {
  return {x.data_ptr<Bf16>() + sample * x.stride(0) + head * x.stride(2), x.stride(1)};
}

// Uninitialised memory of one task.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : bytes_(at::empty({count * static_cast<int64_t>(sizeof(T))}, at::kByte)) {}
  T* get() const { return reinterpret_cast<T*>(bytes_.data_ptr<uint8_t>()); }

 private:
  at::Tensor bytes_;
};

enum class Into { kReplace, kAdd };

// c (m, n) = or += a (m, k) b (k, n), b as pairs with `ldb` columns.
void Product(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda, const BfPair* b,
             int64_t ldb, float* c, int64_t ldc, Into into) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, into == Into::kAdd, a,
                              reinterpret_cast<const Bf16*>(b), c, /*is_vnni=*/true);
}

// Whether oneDNN has this product, in the layout assumed here: it also obeys an environment
// variable and a build option that the CPU's flags do not show. (1, 2) (2, 16) = 3 * 5 + 7 * 11.
bool ProbeProduct() {
  const Bf16 a[2] = {3.0f, 7.0f};
  uint32_t b[16];
  float c[16] = {};
  const Bf16 rows[2][16] = {{5.0f}, {11.0f}};
  kernels::PackRows(&rows[0][0], 16, 2, 16, b);
  try {
    Product(1, 16, 2, a, 2, b, 16, c, 16, Into::kReplace);
    at::native::cpublas::brgemm_release();
  } catch (const c10::Error&) {
    return false;
  }
  return c[0] == 92.0f && c[1] == 0.0f;
}

bool CpuMultipliesBf16() {
#if defined(__x86_64__)
  // Without these instructions oneDNN emulates them: LibTorch's kernel is better then.
  static const bool has = __builtin_cpu_supports("avx512bf16") && ProbeProduct();
  return has && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

// x (S, D) as B = x^T (D, S).
void PackTransposed(const Rows<Bf16>& x, const Sizes& z, BfPair* out) {
  kernels::TransposePairs(reinterpret_cast<const BfPair*>(x.data), x.stride / 2, z.seq,
                          z.channels / 2, out, z.seq);
}

class ForwardWorker {
 public:
  explicit ForwardWorker(const Sizes& z)
      : z_(z),
        k_pairs_(z.seq * z.channels / 2),
        v_pairs_(z.seq * z.channels / 2),
        scores_(kBlock * z.seq),
        sums_(kBlock * z.channels),
        probs_(kBlock * z.seq) {}

  void Group(const Rows<Bf16>& k, const Rows<Bf16>& v) const {
    PackTransposed(k, z_, k_pairs_.get());
    kernels::PackRows(v.data, v.stride, z_.seq, z_.channels, v_pairs_.get());
  }

  void Head(const Rows<Bf16>& q, const Rows<Bf16>& out, float* lse) const {
    const int64_t d = z_.channels;
    float inverse_sum[kBlock];
    for (int64_t first = 0; first < z_.seq; first += kBlock) {
      const int64_t keys = first + kBlock;
      Product(kBlock, keys, d, q.at(first), q.stride, k_pairs_.get(), z_.seq, scores_.get(), keys,
              Into::kReplace);
      kernels::CausalSoftmax(scores_.get(), kBlock, keys, first + 1, z_.scale, probs_.get(),
                             inverse_sum, lse + first);
      Product(kBlock, d, keys, probs_.get(), keys, v_pairs_.get(), d, sums_.get(), d,
              Into::kReplace);
      kernels::RoundRows(sums_.get(), inverse_sum, kBlock, d, out.at(first), out.stride);
    }
  }

 private:
  const Sizes& z_;
  const Scratch<uint32_t> k_pairs_, v_pairs_;  // K^T and V
  const Scratch<float> scores_, sums_;         // (64, keys), (64, D)
  const Scratch<Bf16> probs_;
};

// Everything is transposed, keys as rows, so that P^T and dS^T are left operands as they are.
class BackwardWorker {
 public:
  explicit BackwardWorker(const Sizes& z)
      : z_(z),
        qt_(z.seq * z.channels / 2),
        dot_(z.seq * z.channels / 2),
        q_(z.seq * z.channels / 2),
        do_(z.seq * z.channels / 2),
        ds_pairs_(kBlock * kChunk / 2),
        s_(kBlock * kChunk),
        dp_(kBlock * kChunk),
        delta_(z.seq),
        dqt_(z.seq * z.channels),
        dk_(z.seq * z.channels),
        dv_(z.seq * z.channels),
        kt_(z.seq * z.channels),
        p_(kBlock * kChunk),
        ds_(kBlock * kChunk) {}

  void StartGroup(const Rows<Bf16>& k) const {
    PackTransposed(k, z_, qt_.get());
    kernels::UnpackRows(qt_.get(), z_.channels / 2, z_.seq, kt_.get());
  }

  struct Head {
    Rows<Bf16> q, k, v, out, dout, dq;
    const float* lse;
    bool first;  // of its group: starts the sums of dk and dv
  };
  void OneHead(const Head& h) const {
    const int64_t d = z_.channels;
    PackTransposed(h.q, z_, qt_.get());
    PackTransposed(h.dout, z_, dot_.get());
    kernels::PackRows(h.q.data, h.q.stride, z_.seq, d, q_.get());
    kernels::PackRows(h.dout.data, h.dout.stride, z_.seq, d, do_.get());
    kernels::DotRows(h.dout.data, h.dout.stride, h.out.data, h.out.stride, z_.seq, d, delta_.get());
    for (int64_t key = 0; key < z_.seq; key += kBlock) {
      for (int64_t query = key; query < z_.seq; query += kChunk) Block(h, key, query);
    }
    kernels::RoundToPairs(dqt_.get(), d, z_.seq, qt_.get());
    kernels::TransposePairs(qt_.get(), z_.seq, d / 2, z_.seq, reinterpret_cast<BfPair*>(h.dq.data),
                            h.dq.stride / 2);
  }

  void FinishGroup(const Rows<Bf16>& dk, const Rows<Bf16>& dv) const {
    kernels::RoundRows(dk_.get(), nullptr, z_.seq, z_.channels, dk.data, dk.stride);
    kernels::RoundRows(dv_.get(), nullptr, z_.seq, z_.channels, dv.data, dv.stride);
  }

 private:
  // Keys [key, key + 64) against queries [query, query + 256).
  void Block(const Head& h, int64_t key, int64_t query) const {
    const int64_t d = z_.channels, n = std::min(kChunk, z_.seq - query);
    Product(kBlock, n, d, h.k.at(key), h.k.stride, qt_.get() + query, z_.seq, s_.get(), n,
            Into::kReplace);
    Product(kBlock, n, d, h.v.at(key), h.v.stride, dot_.get() + query, z_.seq, dp_.get(), n,
            Into::kReplace);
    kernels::ScoreGrads({.s = s_.get(),
                         .dp = dp_.get(),
                         .lse = h.lse + query,
                         .delta = delta_.get() + query,
                         .rows = kBlock,
                         .cols = n,
                         .hidden = key - query,
                         .scale = z_.scale,
                         .p = p_.get(),
                         .ds = ds_.get(),
                         .ds_pairs = ds_pairs_.get()});
    const Into keys_into = h.first && query == key ? Into::kReplace : Into::kAdd;
    Product(kBlock, d, n, p_.get(), n, do_.get() + query / 2 * d, d, dv_.get() + key * d, d,
            keys_into);
    Product(kBlock, d, n, ds_.get(), n, q_.get() + query / 2 * d, d, dk_.get() + key * d, d,
            keys_into);
    Product(d, n, kBlock, kt_.get() + key, z_.seq, ds_pairs_.get(), n, dqt_.get() + query, z_.seq,
            key == 0 ? Into::kReplace : Into::kAdd);
  }

  const Sizes& z_;
  const Scratch<uint32_t> qt_, dot_, q_, do_;  // Q^T, dO^T (D, S); Q, dO (S, D)
  const Scratch<uint32_t> ds_pairs_;           // dS^T (64, 256)
  const Scratch<float> s_, dp_;                // S^T, dP^T (64, 256)
  const Scratch<float> delta_;                 // (S): sum of dO * O
  const Scratch<float> dqt_, dk_, dv_;         // dQ^T (D, S); (S, D)
  const Scratch<Bf16> kt_;                     // K^T (D, S), plain
  const Scratch<Bf16> p_, ds_;                 // P^T, dS^T (64, 256)
};

}  // namespace

bool BlockedAttentionTakes(const AttentionTensors& in) {
  const Sizes z(in);
  const auto even_strides = [](const at::Tensor& x) {  // pairs of channels are read as words
    return x.stride(3) == 1 && x.stride(0) % 2 == 0 && x.stride(1) % 2 == 0 &&
           x.stride(2) % 2 == 0 && x.storage_offset() % 2 == 0;
  };
  return in.q.is_cpu() && in.q.scalar_type() == at::kBFloat16 && z.batch > 0 && z.seq > 0 &&
         z.seq % kBlock == 0 && z.seq <= kMaxSeq && z.channels % 2 == 0 && even_strides(in.q) &&
         even_strides(in.k) && even_strides(in.v) && CpuMultipliesBf16();
}

at::Tensor BlockedAttention(const AttentionTensors& in, const at::Tensor& out) {
  const Sizes z(in);
  const int64_t r = z.heads / z.groups;
  at::Tensor lse = at::empty({z.batch, z.heads, z.seq}, at::kFloat);
  at::parallel_for(0, z.batch * z.groups, 1, [&](int64_t begin, int64_t end) {
    const ForwardWorker worker(z);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / z.groups, g = task % z.groups;
      worker.Group(HeadRows(in.k, b, g), HeadRows(in.v, b, g));
      for (int64_t h = g * r; h < (g + 1) * r; ++h) {
        worker.Head(HeadRows(in.q, b, h), HeadRows(out, b, h),
                    lse.data_ptr<float>() + (b * z.heads + h) * z.seq);
      }
    }
    at::native::cpublas::brgemm_release();
  });
  return lse;
}

void BlockedAttentionBackward(const AttentionTensors& in, const at::Tensor& out,
                              const at::Tensor& lse, const at::Tensor& dout,
                              const AttentionTensors& grads) {
  const Sizes z(in);
  const int64_t r = z.heads / z.groups;
  at::parallel_for(0, z.batch * z.groups, 1, [&](int64_t begin, int64_t end) {
    const BackwardWorker worker(z);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / z.groups, g = task % z.groups;
      const Rows<Bf16> k = HeadRows(in.k, b, g), v = HeadRows(in.v, b, g);
      worker.StartGroup(k);
      for (int64_t h = g * r; h < (g + 1) * r; ++h) {
        worker.OneHead({.q = HeadRows(in.q, b, h),
                        .k = k,
                        .v = v,
                        .out = HeadRows(out, b, h),
                        .dout = HeadRows(dout, b, h),
                        .dq = HeadRows(grads.q, b, h),
                        .lse = lse.data_ptr<float>() + (b * z.heads + h) * z.seq,
                        .first = h == g * r});
      }
      worker.FinishGroup(HeadRows(grads.k, b, g), HeadRows(grads.v, b, g));
    }
    at::native::cpublas::brgemm_release();
  });
}

}  // namespace muster
