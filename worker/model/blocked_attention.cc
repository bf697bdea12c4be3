#include "worker/model/blocked_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "common/base/check.h"
#include "worker/model/attention_kernels.h"

namespace muster {
namespace {

using Bf16 = c10::BFloat16;
using kernels::BfPair;

constexpr int64_t kBlock = 64;      // queries of a forward block, keys of a backward block
constexpr int64_t kChunk = 256;     // queries of a backward block: its scores stay in the L2 cache
constexpr int64_t kMaxKeys = 4096;  // a forward block's scores are (64, keys) fp32

struct Sizes {
  Sizes(const AttentionTensors& in, int64_t past_keys)
      : past(past_keys),
        batch(in.q.size(0)),
        queries(in.q.size(1)),
        keys(in.k.size(1)),
        heads(in.q.size(2)),
        groups(in.k.size(2)),
        channels(in.q.size(3)),
        scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(channels)))) {}
  // How many keys some query of [first, first + kBlock) sees, and the first query that sees `key`.
  int64_t KeysSeenBy(int64_t first) const { return std::min(keys, past + first + kBlock); }
  int64_t FirstQueryOf(int64_t key) const { return std::max<int64_t>(0, key - past); }

  const int64_t past, batch, queries, keys, heads, groups, channels;
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

// x (rows, D) as B = x^T (D, rows).
void PackTransposed(const Rows<Bf16>& x, int64_t rows, int64_t channels, BfPair* out) {
  kernels::TransposePairs(reinterpret_cast<const BfPair*>(x.data), x.stride / 2, rows, channels / 2,
                          out, rows);
}

class ForwardWorker {
 public:
  explicit ForwardWorker(const Sizes& z)
      : z_(z),
        k_pairs_(z.keys * z.channels / 2),
        v_pairs_(z.keys * z.channels / 2),
        scores_(kBlock * z.keys),
        sums_(kBlock * z.channels),
        probs_(kBlock * z.keys) {}

  void Group(const Rows<Bf16>& k, const Rows<Bf16>& v) const {
    PackTransposed(k, z_.keys, z_.channels, k_pairs_.get());
    kernels::PackRows(v.data, v.stride, z_.keys, z_.channels, v_pairs_.get());
  }

  void Head(const Rows<Bf16>& q, const Rows<Bf16>& out, float* lse) const {
    const int64_t d = z_.channels;
    float inverse_sum[kBlock];
    for (int64_t first = 0; first < z_.queries; first += kBlock) {
      const int64_t keys = z_.KeysSeenBy(first);
      Product(kBlock, keys, d, q.at(first), q.stride, k_pairs_.get(), z_.keys, scores_.get(), keys,
              Into::kReplace);
      kernels::CausalSoftmax(scores_.get(), kBlock, keys, z_.past + first + 1, z_.scale,
                             probs_.get(), inverse_sum, lse + first);
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
        qt_(z.queries * z.channels / 2),
        dot_(z.queries * z.channels / 2),
        q_(z.queries * z.channels / 2),
        do_(z.queries * z.channels / 2),
        kt_pairs_(z.keys * z.channels / 2),
        ds_pairs_(kBlock * kChunk / 2),
        s_(kBlock * kChunk),
        dp_(kBlock * kChunk),
        delta_(z.queries),
        dqt_(z.queries * z.channels),
        dk_(z.keys * z.channels),
        dv_(z.keys * z.channels),
        kt_(z.keys * z.channels),
        p_(kBlock * kChunk),
        ds_(kBlock * kChunk) {}

  void StartGroup(const Rows<Bf16>& k) const {
    PackTransposed(k, z_.keys, z_.channels, kt_pairs_.get());
    kernels::UnpackRows(kt_pairs_.get(), z_.channels / 2, z_.keys, kt_.get());
  }

  struct Head {
    Rows<Bf16> q, k, v, out, dout, dq;
    const float* lse;
    bool first;  // of its group: starts the sums of dk and dv
  };
  void OneHead(const Head& h) const {
    const int64_t d = z_.channels, n = z_.queries;
    PackTransposed(h.q, n, d, qt_.get());
    PackTransposed(h.dout, n, d, dot_.get());
    kernels::PackRows(h.q.data, h.q.stride, n, d, q_.get());
    kernels::PackRows(h.dout.data, h.dout.stride, n, d, do_.get());
    kernels::DotRows(h.dout.data, h.dout.stride, h.out.data, h.out.stride, n, d, delta_.get());
    for (int64_t key = 0; key < z_.keys; key += kBlock) {
      for (int64_t query = z_.FirstQueryOf(key); query < n; query += kChunk) Block(h, key, query);
    }
    kernels::RoundToPairs(dqt_.get(), d, n, qt_.get());
    kernels::TransposePairs(qt_.get(), n, d / 2, n, reinterpret_cast<BfPair*>(h.dq.data),
                            h.dq.stride / 2);
  }

  void FinishGroup(const Rows<Bf16>& dk, const Rows<Bf16>& dv) const {
    kernels::RoundRows(dk_.get(), nullptr, z_.keys, z_.channels, dk.data, dk.stride);
    kernels::RoundRows(dv_.get(), nullptr, z_.keys, z_.channels, dv.data, dv.stride);
  }

 private:
  // Keys [key, key + 64) against queries [query, query + 256).
  void Block(const Head& h, int64_t key, int64_t query) const {
    const int64_t d = z_.channels, n = std::min(kChunk, z_.queries - query);
    Product(kBlock, n, d, h.k.at(key), h.k.stride, qt_.get() + query, z_.queries, s_.get(), n,
            Into::kReplace);
    Product(kBlock, n, d, h.v.at(key), h.v.stride, dot_.get() + query, z_.queries, dp_.get(), n,
            Into::kReplace);
    kernels::ScoreGrads({.s = s_.get(),
                         .dp = dp_.get(),
                         .lse = h.lse + query,
                         .delta = delta_.get() + query,
                         .rows = kBlock,
                         .cols = n,
                         .hidden = key - query - z_.past,
                         .scale = z_.scale,
                         .p = p_.get(),
                         .ds = ds_.get(),
                         .ds_pairs = ds_pairs_.get()});
    const Into keys_into = h.first && query == z_.FirstQueryOf(key) ? Into::kReplace : Into::kAdd;
    Product(kBlock, d, n, p_.get(), n, do_.get() + query / 2 * d, d, dv_.get() + key * d, d,
            keys_into);
    Product(kBlock, d, n, ds_.get(), n, q_.get() + query / 2 * d, d, dk_.get() + key * d, d,
            keys_into);
    Product(d, n, kBlock, kt_.get() + key, z_.keys, ds_pairs_.get(), n, dqt_.get() + query,
            z_.queries, key == 0 ? Into::kReplace : Into::kAdd);
  }

  const Sizes& z_;
  const Scratch<uint32_t> qt_, dot_, q_, do_;  // Q^T, dO^T (D, queries); Q, dO (queries, D)
  const Scratch<uint32_t> kt_pairs_;           // K^T (D, keys)
  const Scratch<uint32_t> ds_pairs_;           // dS^T (64, 256)
  const Scratch<float> s_, dp_;                // S^T, dP^T (64, 256)
  const Scratch<float> delta_;                 // (queries): sum of dO * O
  const Scratch<float> dqt_, dk_, dv_;         // dQ^T (D, queries); (keys, D)
  const Scratch<Bf16> kt_;                     // K^T (D, keys), plain
  const Scratch<Bf16> p_, ds_;                 // P^T, dS^T (64, 256)
};

}  // namespace

bool BlockedAttentionTakes(const AttentionTensors& in, int64_t past) {
  const Sizes z(in, past);
  const auto in_blocks = [](int64_t rows) { return rows > 0 && rows % kBlock == 0; };
  const auto even_strides = [](const at::Tensor& x) {  // pairs of channels are read as words
    return x.stride(3) == 1 && x.stride(0) % 2 == 0 && x.stride(1) % 2 == 0 &&
           x.stride(2) % 2 == 0 && x.storage_offset() % 2 == 0;
  };
  return in.q.is_cpu() && in.q.scalar_type() == at::kBFloat16 && z.batch > 0 &&
         in_blocks(z.queries) && in_blocks(z.keys) && z.keys <= kMaxKeys &&
         (past % kBlock == 0 || past >= z.keys) && z.channels % 2 == 0 && even_strides(in.q) &&
         even_strides(in.k) && even_strides(in.v) && CpuMultipliesBf16();
}

at::Tensor BlockedAttention(const AttentionTensors& in, const at::Tensor& out, int64_t past) {
  const Sizes z(in, past);
  MUSTER_CHECK_MSG(past + z.queries >= z.keys, "every key is seen");
  const int64_t r = z.heads / z.groups;
  at::Tensor lse = at::empty({z.batch, z.heads, z.queries}, at::kFloat);
  at::parallel_for(0, z.batch * z.groups, 1, [&](int64_t begin, int64_t end) {
    const ForwardWorker worker(z);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / z.groups, g = task % z.groups;
      worker.Group(HeadRows(in.k, b, g), HeadRows(in.v, b, g));
      for (int64_t h = g * r; h < (g + 1) * r; ++h) {
        worker.Head(HeadRows(in.q, b, h), HeadRows(out, b, h),
                    lse.data_ptr<float>() + (b * z.heads + h) * z.queries);
      }
    }
    at::native::cpublas::brgemm_release();
  });
  return lse;
}

void BlockedAttentionBackward(const AttentionTensors& in, const BlockedBackwardInputs& backward,
                              const AttentionTensors& grads, int64_t past) {
  const Sizes z(in, past);
  const at::Tensor& lse = backward.lse;
  MUSTER_CHECK(past + z.queries >= z.keys && lse.stride(2) == 1);
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
                        .out = HeadRows(backward.out, b, h),
                        .dout = HeadRows(backward.dout, b, h),
                        .dq = HeadRows(grads.q, b, h),
                        .lse = lse.data_ptr<float>() + b * lse.stride(0) + h * lse.stride(1),
                        .first = h == g * r});
      }
      worker.FinishGroup(HeadRows(grads.k, b, g), HeadRows(grads.v, b, g));
    }
    at::native::cpublas::brgemm_release();
  });
}

}  // namespace muster
