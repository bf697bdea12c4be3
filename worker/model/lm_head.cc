#include "worker/model/lm_head.h"

#include "worker/model/cross_entropy.h"
#include "worker/model/linear.h"
#include "worker/ops/autograd_op.h"
#include "worker/parallel/gemm.h"

namespace muster {

at::Tensor LmHeadLossOp(const at::Tensor& hidden, const ParameterPtr& weight,
                        const at::Tensor& labels, const TensorParallel& tp) {
  weight->AwaitGather();
  at::Tensor logits;  // (N, V / tp)
  row_ops::CrossEntropyResult out;
  {
    OpForward forward;
    logits = GemmNT(tp.sequence_parallel ? StartGather(tp, hidden).Wait() : hidden, weight->data);
    out = CrossEntropy(logits, labels, tp);
  }
  return RecordOp(out.loss, {hidden, weight->data},
                  [logits, lse = out.lse, labels, weight, tp, hidden = Detached(hidden)](
                      const TensorList& grads, const NeedsGrad& needs) {
                    LogitsToGradient(logits, labels, lse, grads[0], tp);
                    const at::Tensor& dlogits = logits;
                    const LinearGrads d = ColumnParallelBackward(
                        dlogits, hidden, *weight, {.dx = needs[0], .dweight = needs[1]}, tp);
                    return TensorList{d.dx, d.dweight};
                  });
}

}  // namespace muster
