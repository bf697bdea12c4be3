#include "worker/model/lm_head.h"

#include <ATen/ATen.h>

#include "worker/model/autograd_op.h"
#include "worker/model/linear.h"
#include "worker/model/row_ops.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // fp32 copies of this many rows of logits live at a time

at::ScalarType LossType(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

template <typename Body>
void ForRowBlocks(int64_t rows, Body body) {
  for (int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    body(begin, std::min(kRowsAtOnce, rows - begin));
  }
}

row_ops::CrossEntropyResult CrossEntropy(const at::Tensor& logits, const at::Tensor& labels) {
  if (logits.is_cpu()) return row_ops::CrossEntropy(logits, labels);
  row_ops::CrossEntropyResult out;
  out.lse = at::empty({logits.size(0)}, logits.options().dtype(LossType(logits)));
  ForRowBlocks(logits.size(0), [&](int64_t begin, int64_t count) {
    out.lse.narrow(0, begin, count)
        .copy_(at::logsumexp(logits.narrow(0, begin, count).to(LossType(logits)), {1}));
  });
  out.loss = out.lse - at::gather(logits, 1, labels.unsqueeze(1)).squeeze(1).to(LossType(logits));
  return out;
}

// logits <- (softmax(logits) - onehot(labels)) * dloss, row by row.
void LogitsToGradient(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& labels,
                      const at::Tensor& dloss) {
  if (logits.is_cpu()) return row_ops::CrossEntropyBackward(logits, labels, lse, dloss);
  ForRowBlocks(logits.size(0), [&](int64_t begin, int64_t count) {
    at::Tensor block = logits.narrow(0, begin, count);
    const at::Tensor scale = dloss.narrow(0, begin, count).unsqueeze(1);
    at::Tensor p = block.to(LossType(logits), /*non_blocking=*/false, /*copy=*/true)
                       .sub_(lse.narrow(0, begin, count).unsqueeze(1))
                       .exp_()
                       .mul_(scale);
    p.scatter_add_(1, labels.narrow(0, begin, count).unsqueeze(1), -scale);
    block.copy_(p);
  });
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
