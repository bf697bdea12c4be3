// row_kernels.h over tensors on the CPU: blocks of rows spread over torch's threads. The blocks,
// and with them the order of every sum, do not depend on the number of threads.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/model/norm_kernels.h"

namespace muster {

// Which tokens the columns of logits stand for: column j is token begin + j of `vocab` (0: the
// columns are all of them).
struct VocabShard {
  int64_t begin = 0, vocab = 0;
};

}  // namespace muster

namespace muster::row_ops {

NormForwardResult NormForward(const NormInputs& inputs);
NormBackwardResult NormBackward(Normalization kind, const NormBackwardInputs& inputs);

// NormForward's x alone, to the bit: residual + mask * (branch + bias).
at::Tensor FinishAdd(const at::Tensor& residual, const at::Tensor& branch, const at::Tensor& bias,
                     const at::Tensor& drop_mask);
FinishAddGrads FinishAddBackward(const at::Tensor& dx, const at::Tensor& drop_mask,
                                 bool want_dbias);

// x (N, F) or (N, 2F), bias as wide as x or undefined.
at::Tensor BiasGelu(const at::Tensor& x, const at::Tensor& bias);
at::Tensor BiasSwiglu(const at::Tensor& x, const at::Tensor& bias);
struct ActivationGrads {
  at::Tensor dx, dbias;  // dbias in the accumulation type; undefined when not wanted
};
ActivationGrads BiasGeluBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                                 bool want_dbias);
ActivationGrads BiasSwigluBackward(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias, bool want_dbias);

struct CrossEntropyResult {
  at::Tensor lse, loss;  // (N), accumulation type
};
// logits (N, columns), labels (N) in [0, vocab): IndexError for others. lse and loss are of the
// columns that are here; the loss is 0 where the label's is not.
CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                const VocabShard& shard = {});
// In place: logits become their gradient (exp(logits - lse) - onehot) * dloss, lse being that of
// the whole vocabulary.
void CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                          const at::Tensor& dloss, const VocabShard& shard = {});

}  // namespace muster::row_ops
