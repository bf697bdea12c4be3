#include "worker/model/linear.h"

#include <ATen/ops/sum.h>

#include "worker/parallel/gemm.h"

namespace muster {

at::Tensor DeliverGrad(Parameter& parameter, const at::Tensor& grad) {
  if (!parameter.main_grad.defined()) return grad.to(parameter.data.scalar_type());
  parameter.AccumulateGrad(grad);
  return {};
}

LinearGrads ColumnParallelBackward(const at::Tensor& dy, const at::Tensor& x, Parameter& weight,
                                   WantedGrads wanted, const TensorParallel& tp) {
  PendingRows rows(x, nullptr);
  if (wanted.dweight && tp.sequence_parallel) rows = StartGather(tp, x);
  PendingRows dx;
  if (wanted.dx) {
    const at::Tensor partial = GemmNN(dy, weight.data);  // this rank's outputs' share
    dx = tp.size > 1 ? StartReduce(tp, partial) : PendingRows(partial, nullptr);
  }
  LinearGrads grads;
  if (wanted.dweight) {
    if (weight.main_grad.defined()) {
      weight.AccumulateGradGemm(dy, rows.Wait());
    } else {
      grads.dweight = GemmTN(dy, rows.Wait());
    }
  }
  grads.dx = dx.Wait();
  return grads;
}

at::Tensor LinearOp(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias) {
  return ColumnParallelOp(x, weight, bias, TensorParallel{});
}

at::Tensor ColumnParallelOp(const at::Tensor& x, const ParameterPtr& weight,
                            const ParameterPtr& bias, const TensorParallel& tp) {
  weight->AwaitGather();
  if (bias != nullptr) bias->AwaitGather();
  const at::Tensor bias_data = bias == nullptr ? at::Tensor() : bias->data;
  at::Tensor y;
  {
    OpForward forward;
    y = GemmNT(tp.sequence_parallel ? StartGather(tp, x).Wait() : x, weight->data, bias_data);
  }
  return RecordOp(y, {x, weight->data, bias_data},
                  [x, weight, bias, tp](const TensorList& grads, const NeedsGrad& needs) {
                    const at::Tensor dy = grads[0].contiguous();
                    TensorList result(3);
                    if (needs[2]) result[2] = DeliverGrad(*bias, at::sum(dy, {0}));
                    const LinearGrads d = ColumnParallelBackward(
                        dy, x, *weight, {.dx = needs[0], .dweight = needs[1]}, tp);
                    result[0] = d.dx;
                    result[1] = d.dweight;
                    return result;
                  });
}

at::Tensor RowParallelOp(const at::Tensor& x, const ParameterPtr& weight,
                         const TensorParallel& tp) {
  if (tp.size == 1) return LinearOp(x, weight, nullptr);
  weight->AwaitGather();
  at::Tensor y;
  {
    OpForward forward;
    y = StartReduce(tp, GemmNT(x, weight->data)).Wait();
  }
  return RecordOp(
      y, {x, weight->data}, [x, weight, tp](const TensorList& grads, const NeedsGrad& needs) {
        const at::Tensor dy =
            tp.sequence_parallel ? StartGather(tp, grads[0]).Wait() : grads[0].contiguous();
        // x is this rank's part of the inputs, and so are dx and dW: nothing to reduce.
        const LinearGrads d = ColumnParallelBackward(
            dy, x, *weight, {.dx = needs[0], .dweight = needs[1]}, TensorParallel{});
        return TensorList{d.dx, d.dweight};
      });
}

ColumnParallelLinear::ColumnParallelLinear(LayerBuild& build, const std::string& name,
                                           const Options& options)
    : tp_(build.tp) {
  const Partition rows = {.dim = 0, .stride = options.stride};
  weight_ = MakeParameter(build, name + ".weight", {options.out, options.in},
                          InitMethod::Normal(options.init_std), rows);
  if (options.bias) {
    bias_ = MakeParameter(build, name + ".bias", {options.out}, InitMethod::Zeros(), rows);
  }
}

RowParallelLinear::RowParallelLinear(LayerBuild& build, const std::string& name, int64_t in,
                                     int64_t out, bool bias, double init_std)
    : tp_(build.tp) {
  weight_ =
      MakeParameter(build, name + ".weight", {out, in}, InitMethod::Normal(init_std), {.dim = 1});
  if (bias) bias_ = MakeParameter(build, name + ".bias", {out}, InitMethod::Zeros());
  MarkSequenceParallel(build, bias_);
}

}  // namespace muster
