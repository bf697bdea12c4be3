#include "worker/model/norm.h"

#include <utility>

#include <ATen/ops/alias.h>
#include <ATen/ops/empty_like.h>

#include "worker/model/linear.h"
#include "worker/model/norm_kernels.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

at::Tensor DataOrNone(const ParameterPtr& parameter) {
  return parameter == nullptr ? at::Tensor() : parameter->data;
}

void AwaitGather(const ParameterPtr& parameter) {
  if (parameter != nullptr) parameter->AwaitGather();
}

}  // namespace

at::Tensor MakeDropMask(const at::Tensor& like, double p, const at::Generator& generator) {
  if (p == 0) return {};
  OpForward forward;
  return at::empty_like(like).bernoulli_(1 - p, generator).mul_(1 / (1 - p));
}

at::Tensor FinishAdd(const PendingAdd& pending) {
  if (!pending.branch.defined()) return pending.residual;
  const ParameterPtr& bias = pending.bias;
  const at::Tensor& mask = pending.drop_mask;
  AwaitGather(bias);
  at::Tensor x;
  {
    OpForward forward;
    x = FinishAddForward(pending.residual, pending.branch, DataOrNone(bias), mask);
  }
  return RecordOp(x, {pending.residual, pending.branch, DataOrNone(bias)},
                  [bias, mask](const TensorList& grads, const NeedsGrad& needs) {
                    const FinishAddGrads d = FinishAddBackward(grads[0], mask, needs[2]);
                    TensorList result = {grads[0], d.dbranch, at::Tensor()};
                    if (needs[2]) result[2] = DeliverGrad(*bias, d.dbias);
                    return result;
                  });
}

Norm::Norm(LayerBuild& build, const std::string& name, int64_t width)
    : kind_(build.config.normalization), epsilon_(build.config.norm_epsilon) {
  weight_ = MakeParameter(build, name + ".weight", {width}, InitMethod::Ones());
  if (kind_ == Normalization::kLayerNorm) {
    bias_ = MakeParameter(build, name + ".bias", {width}, InitMethod::Zeros());
  }
  MarkSequenceParallel(build, weight_);
  MarkSequenceParallel(build, bias_);
}

void Norm::MarkQkLayernorm() {
  weight_->is_qk_layernorm = true;
  if (bias_ != nullptr) bias_->is_qk_layernorm = true;
}

Norm::Result Norm::Forward(const PendingAdd& pending) const {
  AwaitGather(weight_);
  AwaitGather(bias_);
  AwaitGather(pending.bias);
  NormForwardResult out;
  {
    OpForward forward;
    out = NormForward(kind_, {.residual = pending.residual,
                              .branch = pending.branch,
                              .bias = DataOrNone(pending.bias),
                              .drop_mask = pending.drop_mask,
                              .weight = weight_->data,
                              .beta = DataOrNone(bias_),
                              .epsilon = epsilon_});
    // Without a sum to make, x is the residual passing through: its gradient is added in this
    // operation's backward all the same, with one rounding.
    if (!pending.branch.defined()) out.x = at::alias(out.x);
  }
  const auto backward = [kind = kind_, x = Detached(out.x), mean = out.mean, rstd = out.rstd,
                         mask = pending.drop_mask, weight = weight_, beta = bias_,
                         bias = pending.bias](const TensorList& grads, const NeedsGrad& needs) {
    // Recorded outputs: y and x.
    TensorList result(5);
    if (!grads[0].defined()) {  // only the residual stream was used
      const FinishAddGrads d = FinishAddBackward(grads[1], mask, needs[4]);
      result[0] = grads[1];
      if (needs[1]) result[1] = d.dbranch;
      if (needs[4]) result[4] = DeliverGrad(*bias, d.dbias);
      return result;
    }
    NormBackwardResult d = NormBackward(kind, {.dy = grads[0],
                                               .dx_in = grads[1],
                                               .x = x,
                                               .mean = mean,
                                               .rstd = rstd,
                                               .weight = weight->data,
                                               .drop_mask = mask,
                                               .want_dbias = needs[4],
                                               .want_dbeta = needs[3]});
    result[0] = d.dx;
    if (needs[1]) result[1] = d.dbranch;
    if (needs[2]) result[2] = DeliverGrad(*weight, d.dweight);
    if (needs[3]) result[3] = DeliverGrad(*beta, d.dbeta);
    if (needs[4]) result[4] = DeliverGrad(*bias, d.dbias);
    return result;
  };
  const TensorList inputs = {pending.residual, pending.branch, weight_->data, DataOrNone(bias_),
                             DataOrNone(pending.bias)};
  TensorList outputs = RecordOp(TensorList{out.y, out.x}, inputs, backward);
  return {outputs[1], outputs[0]};
}

at::Tensor Norm::Forward(const at::Tensor& x) const { return Forward(PendingAdd{.residual = x}).y; }

}  // namespace muster
