#include "worker/model/row_ops.h"

#include <algorithm>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "worker/model/row_kernels.h"

namespace muster::row_ops {
namespace {

constexpr int64_t kRowsInBlock = 64;

int64_t BlocksOf(int64_t rows) { return (rows + kRowsInBlock - 1) / kRowsInBlock; }

// body(block, first row, number of rows)
template <typename Body>
void ForBlocks(int64_t rows, const Body& body) {
  at::parallel_for(0, BlocksOf(rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRowsInBlock;
      body(block, first, std::min(kRowsInBlock, rows - first));
    }
  });
}

at::TensorOptions AccOptions(const at::Tensor& like) {
  return like.options().dtype(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// A row of sums a block; undefined when not wanted.
at::Tensor BlockSums(bool wanted, int64_t rows, int64_t cols, const at::Tensor& like) {
  return wanted ? at::zeros({BlocksOf(rows), cols}, AccOptions(like)) : at::Tensor();
}
at::Tensor Total(const at::Tensor& block_sums) {
  return block_sums.defined() ? at::sum(block_sums, {0}) : at::Tensor();
}

template <typename T>
T* Data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}
template <typename T>
T* Shift(T* data, int64_t elements) {
  return data == nullptr ? nullptr : data + elements;
}
at::Tensor Dense(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

#define MUSTER_DISPATCH(type, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, type, "muster_rows", __VA_ARGS__)

}  // namespace

NormForwardResult NormForward(const NormInputs& in) {
  const at::Tensor residual = Dense(in.residual), branch = Dense(in.branch);
  const int64_t cols = residual.size(-1), rows = residual.numel() / cols;
  const bool layer_norm = in.beta.defined();
  NormForwardResult out;
  out.x = branch.defined() ? at::empty_like(residual) : residual;
  out.y = at::empty_like(residual);
  out.rstd = at::empty({rows}, AccOptions(residual));
  if (layer_norm) out.mean = at::empty({rows}, AccOptions(residual));
  MUSTER_DISPATCH(residual.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    const kernels::AddNormRows<scalar_t> all = {.residual = Data<scalar_t>(residual),
                                                .branch = Data<scalar_t>(branch),
                                                .bias = Data<scalar_t>(in.bias),
                                                .mask = Data<scalar_t>(in.drop_mask),
                                                .weight = Data<scalar_t>(in.weight),
                                                .beta = Data<scalar_t>(in.beta),
                                                .epsilon = in.epsilon,
                                                .x = Data<scalar_t>(out.x),
                                                .y = Data<scalar_t>(out.y),
                                                .mean = Data<A>(out.mean),
                                                .rstd = Data<A>(out.rstd)};
    ForBlocks(rows, [&](int64_t, int64_t first, int64_t count) {
      kernels::AddNormRows<scalar_t> a = all;
      a.residual = Shift(a.residual, first * cols);
      a.branch = Shift(a.branch, first * cols);
      a.mask = Shift(a.mask, first * cols);
      a.x = Shift(a.x, first * cols);
      a.y = Shift(a.y, first * cols);
      a.mean = Shift(a.mean, first);
      a.rstd = Shift(a.rstd, first);
      kernels::AddNorm(a, count, cols);
    });
  });
  return out;
}

NormBackwardResult NormBackward(Normalization kind, const NormBackwardInputs& in) {
  const at::Tensor dy = Dense(in.dy), dx_in = Dense(in.dx_in), x = Dense(in.x);
  const int64_t cols = x.size(-1), rows = x.numel() / cols;
  const bool layer_norm = kind == Normalization::kLayerNorm;
  const bool masked = in.drop_mask.defined();
  NormBackwardResult out;
  out.dx = at::empty_like(x);
  out.dbranch = masked ? at::empty_like(x) : out.dx;
  const at::Tensor dweight = BlockSums(true, rows, cols, x);
  const at::Tensor dbeta = BlockSums(layer_norm, rows, cols, x);
  const at::Tensor dbias = BlockSums(in.want_dbias, rows, cols, x);
  MUSTER_DISPATCH(x.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    const kernels::NormBackwardRows<scalar_t> all = {
        .dy = Data<scalar_t>(dy),
        .dx_in = Data<scalar_t>(dx_in),
        .x = Data<scalar_t>(x),
        .mask = Data<scalar_t>(in.drop_mask),
        .weight = Data<scalar_t>(in.weight),
        .mean = Data<A>(in.mean),
        .rstd = Data<A>(in.rstd),
        .dx = Data<scalar_t>(out.dx),
        .dbranch = masked ? Data<scalar_t>(out.dbranch) : nullptr,
        .dweight = Data<A>(dweight),
        .dbeta = Data<A>(dbeta),
        .dbias = Data<A>(dbias)};
    ForBlocks(rows, [&](int64_t block, int64_t first, int64_t count) {
      kernels::NormBackwardRows<scalar_t> a = all;
      a.dy = Shift(a.dy, first * cols);
      a.dx_in = Shift(a.dx_in, first * cols);
      a.x = Shift(a.x, first * cols);
      a.mask = Shift(a.mask, first * cols);
      a.mean = Shift(a.mean, first);
      a.rstd = Shift(a.rstd, first);
      a.dx = Shift(a.dx, first * cols);
      a.dbranch = Shift(a.dbranch, first * cols);
      a.dweight = Shift(a.dweight, block * cols);
      a.dbeta = Shift(a.dbeta, block * cols);
      a.dbias = Shift(a.dbias, block * cols);
      kernels::NormBackward(a, count, cols);
    });
  });
  out.dweight = Total(dweight);
  out.dbeta = Total(dbeta);
  out.dbias = Total(dbias);
  return out;
}

at::Tensor FinishAdd(const at::Tensor& residual_in, const at::Tensor& branch_in,
                     const at::Tensor& bias, const at::Tensor& drop_mask) {
  const at::Tensor residual = Dense(residual_in), branch = Dense(branch_in);
  const int64_t cols = residual.size(-1), rows = residual.numel() / cols;
  at::Tensor x = at::empty_like(residual);
  MUSTER_DISPATCH(residual.scalar_type(), [&] {
    ForBlocks(rows, [&](int64_t, int64_t first, int64_t count) {
      const int64_t at = first * cols;
      kernels::AddNormRows<scalar_t> a = {};
      a.residual = Data<scalar_t>(residual) + at;
      a.branch = Data<scalar_t>(branch) + at;
      a.bias = Data<scalar_t>(bias);
      a.mask = Shift(Data<scalar_t>(drop_mask), at);
      a.x = Data<scalar_t>(x) + at;
      kernels::FinishAdd(a, count, cols);
    });
  });
  return x;
}

FinishAddGrads FinishAddBackward(const at::Tensor& grad, const at::Tensor& drop_mask,
                                 bool want_dbias) {
  const at::Tensor dx = Dense(grad);
  const int64_t cols = dx.size(-1), rows = dx.numel() / cols;
  FinishAddGrads out;
  out.dbranch = drop_mask.defined() ? at::empty_like(dx) : dx;
  if (!drop_mask.defined() && !want_dbias) return out;
  const at::Tensor sums = BlockSums(want_dbias, rows, cols, dx);
  MUSTER_DISPATCH(dx.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    ForBlocks(rows, [&](int64_t block, int64_t first, int64_t count) {
      const int64_t at = first * cols;
      kernels::FinishAddBackward(Data<scalar_t>(dx) + at, Shift(Data<scalar_t>(drop_mask), at),
                                 Data<scalar_t>(out.dbranch) + at,
                                 Shift(Data<A>(sums), block * cols), count, cols);
    });
  });
  out.dbias = Total(sums);
  return out;
}

at::Tensor BiasGelu(const at::Tensor& x, const at::Tensor& bias) {
  at::Tensor y = at::empty_like(x);
  const int64_t cols = x.size(1);
  MUSTER_DISPATCH(x.scalar_type(), [&] {
    ForBlocks(x.size(0), [&](int64_t, int64_t first, int64_t count) {
      kernels::BiasGelu(Data<scalar_t>(x) + first * cols, Data<scalar_t>(bias),
                        Data<scalar_t>(y) + first * cols, count, cols);
    });
  });
  return y;
}

at::Tensor BiasSwiglu(const at::Tensor& x, const at::Tensor& bias) {
  const int64_t cols = x.size(1) / 2;
  at::Tensor y = at::empty({x.size(0), cols}, x.options());
  MUSTER_DISPATCH(x.scalar_type(), [&] {
    ForBlocks(x.size(0), [&](int64_t, int64_t first, int64_t count) {
      kernels::BiasSwiglu(Data<scalar_t>(x) + first * 2 * cols, Data<scalar_t>(bias),
                          Data<scalar_t>(y) + first * cols, count, cols);
    });
  });
  return y;
}

ActivationGrads BiasGeluBackward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& bias, bool want_dbias) {
  const at::Tensor dy = Dense(grad);
  const int64_t cols = x.size(1);
  ActivationGrads out;
  out.dx = at::empty_like(x);
  const at::Tensor sums = BlockSums(want_dbias, x.size(0), cols, x);
  MUSTER_DISPATCH(x.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    ForBlocks(x.size(0), [&](int64_t block, int64_t first, int64_t count) {
      const int64_t at = first * cols;
      kernels::BiasGeluBackward(Data<scalar_t>(dy) + at, Data<scalar_t>(x) + at,
                                Data<scalar_t>(bias), Data<scalar_t>(out.dx) + at,
                                Shift(Data<A>(sums), block * cols), count, cols);
    });
  });
  out.dbias = Total(sums);
  return out;
}

ActivationGrads BiasSwigluBackward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& bias, bool want_dbias) {
  const at::Tensor dy = Dense(grad);
  const int64_t cols = x.size(1) / 2;
  ActivationGrads out;
  out.dx = at::empty_like(x);
  const at::Tensor sums = BlockSums(want_dbias, x.size(0), 2 * cols, x);
  MUSTER_DISPATCH(x.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    ForBlocks(x.size(0), [&](int64_t block, int64_t first, int64_t count) {
      const int64_t at = first * 2 * cols;
      kernels::BiasSwigluBackward(Data<scalar_t>(dy) + first * cols, Data<scalar_t>(x) + at,
                                  Data<scalar_t>(bias), Data<scalar_t>(out.dx) + at,
                                  Shift(Data<A>(sums), block * 2 * cols), count, cols);
    });
  });
  out.dbias = Total(sums);
  return out;
}

CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                const VocabShard& shard) {
  const int64_t rows = logits.size(0), cols = logits.size(1);
  const int64_t vocab = shard.vocab == 0 ? cols : shard.vocab;
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    TORCH_CHECK_INDEX(label[i] >= 0 && label[i] < vocab, "label ", label[i], " is not in [0, ",
                      vocab, ") of the padded vocabulary");
  }
  CrossEntropyResult out = {at::empty({rows}, AccOptions(logits)),
                            at::empty({rows}, AccOptions(logits))};
  MUSTER_DISPATCH(logits.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    ForBlocks(rows, [&](int64_t, int64_t first, int64_t count) {
      kernels::CrossEntropy(Data<scalar_t>(logits) + first * cols, label + first, shard.begin,
                            Data<A>(out.lse) + first, Data<A>(out.loss) + first, count, cols);
    });
  });
  return out;
}

void CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                          const at::Tensor& dloss, const VocabShard& shard) {
  const int64_t rows = logits.size(0), cols = logits.size(1);
  const at::Tensor scale = Dense(dloss);
  MUSTER_DISPATCH(logits.scalar_type(), [&] {
    using A = kernels::Acc<scalar_t>;
    ForBlocks(rows, [&](int64_t, int64_t first, int64_t count) {
      kernels::CrossEntropyBackward(Data<scalar_t>(logits) + first * cols,
                                    labels.const_data_ptr<int64_t>() + first, shard.begin,
                                    Data<A>(lse) + first, Data<A>(scale) + first, count, cols);
    });
  });
}

}  // namespace muster::row_ops
