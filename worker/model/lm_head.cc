#include "worker/model/lm_head.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "worker/model/autograd_op.h"
#include "worker/model/device_row_ops.h"
#include "worker/model/linear.h"
#include "worker/model/row_ops.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

// On a GPU: elements of logits whose fp32 copies live at a time (256 MiB a copy).
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

row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels) {
  if (logits.is_cpu()) return row_ops::CrossEntropy(logits, labels);
  if (const auto* ops = DeviceRowOpsFor(logits, &DeviceRowOps::TakesLogits))
    return ops->CrossEntropy(logits, labels);
  row_ops::CrossEntropyResult out;
  out.loss = at::empty({logits.size(0)}, logits.options().dtype(LossType(logits)));
  ForRowBlocks(logits, [&](int64_t begin, int64_t count) {
    const at::Tensor log_p = at::log_softmax(logits.narrow(0, begin, count), 1, LossType(logits));
    const at::Tensor label = labels.narrow(0, begin, count).unsqueeze(1);
    out.loss.narrow(0, begin, count).copy_(at::gather(log_p, 1, label).squeeze(1).neg_());
  });
  out.lse = out.loss + at::gather(logits, 1, labels.unsqueeze(1)).squeeze(1).to(LossType(logits));
  return out;
}

// logits <- (softmax(logits) - onehot(labels)) * dloss, row by row. The label's own entry, where
// softmax - 1 would cancel, is computed in the loss's type.
void LogitsToGradient(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                      const at::Tensor& dloss) {
  if (logits.is_cpu()) return row_ops::CrossEntropyBackward(logits, labels, lse, dloss);
  if (const auto* ops = DeviceRowOpsFor(logits, &DeviceRowOps::TakesLogits)) {
    return ops->CrossEntropyBackward(logits, labels, lse, dloss);
  }
  const at::Tensor label = labels.unsqueeze(1);  // (N, 1)
  const at::Tensor at_label = at::gather(logits, 1, label).to(LossType(logits));
  const at::Tensor d_label =
      at_label.sub(lse.unsqueeze(1)).exp_().sub_(1).mul_(dloss.unsqueeze(1)).to(logits.dtype());
  ForRowBlocks(logits, [&](int64_t begin, int64_t count) {
    at::Tensor block = logits.narrow(0, begin, count);
    at::mul_out(block, at::softmax(block, 1), dloss.narrow(0, begin, count).unsqueeze(1));
  });
  at::Tensor(logits).scatter_(1, label, d_label);
}

}  // namespace

at::Tensor LmHeadLossOp(const at::Tensor& hidden, const ParameterPtr& weight,
                        const at::Tensor& labels) {
  at::Tensor logits;
  row_ops::CrossEntropyResult out;
  {
    OpForward forward;
    logits = GemmNT(hidden, weight->data);
    out = CrossEntropy(logits, labels);
  }
  return RecordOp(out.loss, {hidden, weight->data},
                  [logits, lse = out.lse, labels, weight, hidden = Detached(hidden)](
                      const TensorList& grads, const NeedsGrad& needs) {
                    LogitsToGradient(logits, lse, labels, grads[0]);
                    const at::Tensor& dlogits = logits;
                    TensorList result(2);
                    if (needs[0]) result[0] = GemmNN(dlogits, weight->data);
                    if (needs[1]) {
                      if (weight->main_grad.defined()) {
                        weight->AccumulateGradGemm(dlogits, hidden);
                      } else {
                        result[1] = GemmTN(dlogits, hidden);
                      }
                    }
                    return result;
                  });
}

}  // namespace muster
