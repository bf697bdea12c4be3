#include "worker/model/cross_entropy.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "worker/model/device_row_ops.h"

namespace muster {
namespace {

// Elements of logits whose fp32 copies live at a time (256 MiB a copy).
constexpr int64_t kElementsAtOnce = int64_t{1} << 26;

at::ScalarType LossType(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

template <typename Body>
void ForRowBlocks(const at::Tensor& logits, Body body) {
  const int64_t rows = logits.size(0);
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / logits.size(1));
  for (int64_t begin = 0; begin < rows; begin += at_once) {
    body(begin, std::min(at_once, rows - begin));
  }
}

// Labels as columns of the logits that are here: (N, 1), 0 for labels of other ranks, which `own`
// tells apart.
struct LabelColumns {
  at::Tensor column, own;
};

LabelColumns FindLabels(const at::Tensor& labels, int64_t columns, const VocabShard& shard) {
  const at::Tensor local = labels.unsqueeze(1).sub(shard.begin);
  const at::Tensor own = local.ge(0).logical_and_(local.lt(columns));
  return {local.mul(own), own};
}

VocabShard ShardOf(const at::Tensor& logits, const TensorParallel& tp) {
  return {.begin = tp.rank * logits.size(1), .vocab = tp.size * logits.size(1)};
}

row_ops::CrossEntropyResult OfOwnColumns(const at::Tensor& logits, const at::Tensor& labels,
                                         const VocabShard& shard) {
  if (logits.is_cpu()) return row_ops::CrossEntropy(logits, labels, shard);
  if (const auto* ops = DeviceRowOpsFor(logits, &DeviceRowOps::TakesLogits))
    return ops->CrossEntropy(logits, labels, shard);
  return composed::CrossEntropy(logits, labels, shard);
}

}  // namespace

row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels,
                                         const TensorParallel& tp) {
  const VocabShard shard = ShardOf(logits, tp);
  const row_ops::CrossEntropyResult local = OfOwnColumns(logits, labels, shard);
  if (tp.size == 1) return local;
  const at::Tensor top = local.lse.clone();  // M
  WaitOrThrow(tp.comm->AllReduce(top, ReduceOp::kMax));
  const at::Tensor own = FindLabels(labels, logits.size(1), shard).own.squeeze(1);
  const at::Tensor below = at::sub(local.lse, top);  // L_r - M
  // Two rows, one reduction: the summands of S, and the label's terms.
  const at::Tensor sums = at::stack({below.exp(), at::where(own, local.loss - below, 0.0)});
  WaitOrThrow(tp.comm->AllReduce(sums, ReduceOp::kSum));
  const at::Tensor log_s = sums[0].log();
  return {.lse = log_s + top, .loss = log_s + sums[1]};
}

void LogitsToGradient(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                      const at::Tensor& dloss, const TensorParallel& tp) {
  const VocabShard shard = ShardOf(logits, tp);
  if (logits.is_cpu()) return row_ops::CrossEntropyBackward(logits, labels, lse, dloss, shard);
  if (const auto* ops = DeviceRowOpsFor(logits, &DeviceRowOps::TakesLogits))
    return ops->CrossEntropyBackward(logits, labels, lse, dloss, shard);
  composed::CrossEntropyBackward(logits, labels, lse, dloss, shard);
}

row_ops::CrossEntropyResult composed::CrossEntropy(const at::Tensor& logits,
                                                   const at::Tensor& labels,
                                                   const VocabShard& shard) {
  const LabelColumns label = FindLabels(labels, logits.size(1), shard);
  const at::Tensor loss = at::empty({logits.size(0), 1}, logits.options().dtype(LossType(logits)));
  ForRowBlocks(logits, [&](int64_t begin, int64_t count) {
    const at::Tensor log_p = at::log_softmax(logits.narrow(0, begin, count), 1, LossType(logits));
    loss.narrow(0, begin, count)
        .copy_(at::gather(log_p, 1, label.column.narrow(0, begin, count)).neg_());
  });
  const at::Tensor lse = loss + at::gather(logits, 1, label.column).to(LossType(logits));
  return {.lse = lse.squeeze(1), .loss = loss.masked_fill(label.own.logical_not(), 0).squeeze(1)};
}

void composed::CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels,
                                    const at::Tensor& lse, const at::Tensor& dloss,
                                    const VocabShard& shard) {
  const LabelColumns label = FindLabels(labels, logits.size(1), shard);
  const at::Tensor shift = lse.unsqueeze(1), scale = dloss.unsqueeze(1);
  const auto softmax = [&](const at::Tensor& z, int64_t begin) {
    return z.to(LossType(logits)).sub(shift.narrow(0, begin, z.size(0))).exp_();
  };
  // The label's own entry, where softmax - 1 would cancel, is computed in the loss's type.
  const at::Tensor d_label = softmax(at::gather(logits, 1, label.column), 0)
                                 .sub_(label.own.to(LossType(logits)))
                                 .mul_(scale);
  ForRowBlocks(logits, [&](int64_t begin, int64_t count) {
    const at::Tensor block = logits.narrow(0, begin, count);
    block.copy_(softmax(block, begin).mul_(scale.narrow(0, begin, count)));
  });
  at::Tensor(logits).scatter_(1, label.column, d_label.to(logits.scalar_type()));
}

}  // namespace muster
