#include "worker/model/norm_kernels.h"

#include <tuple>

#include <ATen/ATen.h>

#include "worker/model/device_row_ops.h"
#include "worker/model/row_ops.h"

namespace muster {
namespace {

at::ScalarType AccumulateType(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

NormForwardResult NormForward(Normalization kind, const NormInputs& in) {
  if (in.residual.is_cpu()) return row_ops::NormForward(in);
  if (const auto* ops = DeviceRowOpsFor(in.residual, &DeviceRowOps::TakesNorm))
    return ops->NormForward(kind, in);
  NormForwardResult out;
  out.x = in.residual;
  if (in.branch.defined()) {
    at::Tensor branch = in.branch;
    if (in.bias.defined()) branch = branch + in.bias;
    out.x = in.drop_mask.defined() ? at::addcmul(in.residual, branch, in.drop_mask)
                                   : in.residual + branch;
  }
  const int64_t width = out.x.size(-1);
  if (kind == Normalization::kLayerNorm) {
    std::tie(out.y, out.mean, out.rstd) =
        at::native_layer_norm(out.x, {width}, in.weight, in.beta, in.epsilon);
    return out;
  }
  const at::Tensor x = out.x.to(AccumulateType(out.x.scalar_type()));
  out.rstd = at::rsqrt(at::mean(x * x, {-1}, /*keepdim=*/true) + in.epsilon);
  out.y = (x * out.rstd * in.weight).to(out.x.scalar_type());
  return out;
}

at::Tensor FinishAddForward(const at::Tensor& residual, const at::Tensor& branch,
                            const at::Tensor& bias, const at::Tensor& drop_mask) {
  if (residual.is_cpu()) return row_ops::FinishAdd(residual, branch, bias, drop_mask);
  const at::Tensor biased = bias.defined() ? branch + bias : branch;
  return drop_mask.defined() ? at::addcmul(residual, biased, drop_mask) : residual + biased;
}

FinishAddGrads FinishAddBackward(const at::Tensor& dx, const at::Tensor& drop_mask,
                                 bool want_dbias) {
  if (dx.is_cpu()) return row_ops::FinishAddBackward(dx, drop_mask, want_dbias);
  FinishAddGrads out;
  out.dbranch = drop_mask.defined() ? dx * drop_mask : dx;
  if (want_dbias) {
    out.dbias = at::sum(out.dbranch, {0}, false, AccumulateType(dx.scalar_type()));
  }
  return out;
}

NormBackwardResult NormBackward(Normalization kind, const NormBackwardInputs& in) {
  if (in.x.is_cpu()) return row_ops::NormBackward(kind, in);
  if (const auto* ops = DeviceRowOpsFor(in.x, &DeviceRowOps::TakesNorm))
    return ops->NormBackward(kind, in);
  NormBackwardResult out;
  const int64_t width = in.x.size(-1);
  const at::Tensor dy = in.dy.contiguous();
  if (kind == Normalization::kLayerNorm) {
    std::tie(out.dx, out.dweight, out.dbeta) = at::native_layer_norm_backward(
        dy, in.x, {width}, in.mean, in.rstd, in.weight, in.weight, {true, true, in.want_dbeta});
  } else {
    // y = w x r, r = (mean x^2 + eps)^(-1/2):  dx = r (w dy - x r^2 mean(w dy x))
    const at::ScalarType type = AccumulateType(in.x.scalar_type());
    const at::Tensor x = in.x.to(type) * in.rstd;  // normalised
    const at::Tensor g = dy.to(type);
    const at::Tensor gw = g * in.weight.to(type);
    out.dx = ((gw - x * at::mean(gw * x, {-1}, true)) * in.rstd).to(in.x.scalar_type());
    out.dweight = at::sum((g * x).reshape({-1, width}), {0});
  }
  if (in.dx_in.defined()) out.dx = out.dx + in.dx_in;
  out.dbranch = in.drop_mask.defined() ? out.dx * in.drop_mask : out.dx;
  if (in.want_dbias) {
    out.dbias = at::sum(out.dbranch, {0}, false, AccumulateType(in.x.scalar_type()));
  }
  return out;
}

}  // namespace muster
