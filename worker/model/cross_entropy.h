// Token cross entropy of logits whose columns are a part of the vocabulary (reference 14.2): by the
// fused kernels of the CPU (row_ops) or the GPU (DeviceRowOps), or composed of LibTorch's
// operations. Over tp only numbers a row travel; with L_r the log-sum-exp of rank r's columns,
//   M = max_r L_r;  S = sum_r exp(L_r - M);  log-sum-exp = M + ln S
//   loss = ln S + (M - L_o) + (L_o - logit of the label), o the rank that has the label
// Three terms that are at least 0: nothing cancels. Nothing is recorded in autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/row_ops.h"
#include "worker/ops/mappings.h"

namespace muster {

// logits (N, V / tp) of this rank's part of the vocabulary, labels (N) in [0, V) -> lse and loss of
// the whole vocabulary, the same on every rank.
row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                         const TensorParallel& tp);

// logits <- (exp(logits - lse) - onehot(labels)) * dloss, row by row.
void LogitsToGradient(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                      const at::Tensor& dloss, const TensorParallel& tp);

// As the functions of row_ops of the same names, of LibTorch's operations on any device. Blocks of
// rows bound the copies in fp32.
namespace composed {

row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                         const VocabShard& shard);
void CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                          const at::Tensor& dloss, const VocabShard& shard);

}  // namespace composed

}  // namespace muster
