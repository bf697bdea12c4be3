#include "worker/model/linear.h"

#include <ATen/ops/sum.h>

#include "worker/model/autograd_op.h"
#include "worker/parallel/gemm.h"

namespace muster {

at::Tensor DeliverGrad(Parameter& parameter, const at::Tensor& grad) {
  if (!parameter.main_grad.defined()) return grad.to(parameter.data.scalar_type());
  parameter.AccumulateGrad(grad);
  return {};
}

at::Tensor LinearOp(const at::Tensor& x, const ParameterPtr& weight, const ParameterPtr& bias) {
  at::Tensor y;
  {
    OpForward forward;
    y = GemmNT(x, weight->data, bias == nullptr ? at::Tensor() : bias->data);
  }
  const at::Tensor bias_data = bias == nullptr ? at::Tensor() : bias->data;
  return RecordOp(y, {x, weight->data, bias_data},
                  [x, weight, bias](const TensorList& grads, const NeedsGrad& needs) {
                    const at::Tensor dy = grads[0].contiguous();
                    TensorList result(3);
                    if (needs[0]) result[0] = GemmNN(dy, weight->data);
                    if (needs[2]) result[2] = DeliverGrad(*bias, at::sum(dy, {0}));
                    if (needs[1]) {
                      if (weight->main_grad.defined()) {
                        weight->AccumulateGradGemm(dy, x);
                      } else {
                        result[1] = GemmTN(dy, x);
                      }
                    }
                    return result;
                  });
}

ColumnParallelLinear::ColumnParallelLinear(LayerBuild& build, const std::string& name, int64_t in,
                                           int64_t out, bool bias, double init_std) {
  weight_ = MakeParameter(build, name + ".weight", {out, in}, InitMethod::Normal(init_std), 0);
  if (bias) bias_ = MakeParameter(build, name + ".bias", {out}, InitMethod::Zeros(), 0);
}

RowParallelLinear::RowParallelLinear(LayerBuild& build, const std::string& name, int64_t in,
                                     int64_t out, bool bias, double init_std) {
  weight_ = MakeParameter(build, name + ".weight", {out, in}, InitMethod::Normal(init_std), 1);
  if (bias) bias_ = MakeParameter(build, name + ".bias", {out}, InitMethod::Zeros());
}

}  // namespace muster
