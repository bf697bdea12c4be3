#include "worker/model/norm.h"

#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "worker/model/autograd_op.h"
#include "worker/model/linear.h"
#include "worker/model/norm_kernels.h"

namespace muster {
namespace {

at::Tensor DataOrNone(const ParameterPtr& parameter) {
  return parameter == nullptr ? at::Tensor() : parameter->data;
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
  at::Tensor x;
  {
    OpForward forward;
    const at::Tensor branch =
        bias == nullptr ? pending.branch : at::add(pending.branch, bias->data);
    x = mask.defined() ? at::addcmul(pending.residual, branch, mask)
                       : at::add(pending.residual, branch);
  }
  return RecordOp(x, {pending.residual, pending.branch, DataOrNone(bias)},
                  [bias, mask](const TensorList& grads, const NeedsGrad& needs) {
                    const at::Tensor dbranch = mask.defined() ? at::mul(grads[0], mask) : grads[0];
                    TensorList result = {grads[0], dbranch, at::Tensor()};
                    if (needs[2]) result[2] = DeliverGrad(*bias, at::sum(dbranch, {0}));
                    return result;
                  });
}

Norm::Norm(LayerBuild& build, const std::string& name, int64_t width)
    : kind_(build.config.normalization), epsilon_(build.config.norm_epsilon) {
  weight_ = MakeParameter(build, name + ".weight", {width}, InitMethod::Ones());
  if (kind_ == Normalization::kLayerNorm) {
    bias_ = MakeParameter(build, name + ".bias", {width}, InitMethod::Zeros());
  }
}

void Norm::MarkQkLayernorm() {
  weight_->is_qk_layernorm = true;
  if (bias_ != nullptr) bias_->is_qk_layernorm = true;
}

Norm::Result Norm::Forward(const PendingAdd& pending) const {
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
  }
  const bool adds = pending.branch.defined();
  const auto backward = [kind = kind_, adds, x = Detached(out.x), mean = out.mean, rstd = out.rstd,
                         mask = pending.drop_mask, weight = weight_, beta = bias_,
                         bias = pending.bias](const TensorList& grads, const NeedsGrad& needs) {
    // Recorded outputs: y, and x when this op made it.
    TensorList result(5);
    if (!grads[0].defined()) {  // only the residual stream was used
      result[0] = grads[1];
      result[1] = mask.defined() ? at::mul(grads[1], mask) : grads[1];
      if (needs[4]) result[4] = DeliverGrad(*bias, at::sum(result[1], {0}));
      return result;
    }
    NormBackwardResult d = NormBackward(kind, {.dy = grads[0],
                                               .dx_in = adds ? grads[1] : at::Tensor(),
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
  if (!adds) return {pending.residual, RecordOp(out.y, inputs, backward)};
  TensorList outputs = RecordOp(TensorList{out.y, out.x}, inputs, backward);
  return {outputs[1], outputs[0]};
}

at::Tensor Norm::Forward(const at::Tensor& x) const { return Forward(PendingAdd{.residual = x}).y; }

}  // namespace muster
