#include "worker/model/activation.h"

#include <ATen/ATen.h>

#include "worker/model/device_row_ops.h"
#include "worker/model/linear.h"
#include "worker/model/row_ops.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

at::Tensor WithBias(const at::Tensor& x, const ParameterPtr& bias) {
  return bias == nullptr ? x : x + bias->data;
}

at::Tensor BiasOrNone(const ParameterPtr& bias) {
  return bias == nullptr ? at::Tensor() : bias->data;
}

at::Tensor Gelu(const at::Tensor& x, const ParameterPtr& bias) {
  if (x.is_cpu()) return row_ops::BiasGelu(x, BiasOrNone(bias));
  if (const auto* ops = DeviceRowOpsFor(x, &DeviceRowOps::TakesActivation))
    return ops->BiasGelu(x, BiasOrNone(bias));
  return at::gelu(WithBias(x, bias));
}

row_ops::ActivationGrads GeluBackward(const at::Tensor& dy, const at::Tensor& x,
                                      const ParameterPtr& bias, bool want_dbias) {
  if (x.is_cpu()) return row_ops::BiasGeluBackward(dy, x, BiasOrNone(bias), want_dbias);
  if (const auto* ops = DeviceRowOpsFor(x, &DeviceRowOps::TakesActivation)) {
    return ops->BiasGeluBackward(dy, x, BiasOrNone(bias), want_dbias);
  }
  row_ops::ActivationGrads d;
  d.dx = at::gelu_backward(dy.contiguous(), WithBias(x, bias));
  if (want_dbias) d.dbias = at::sum(d.dx, {0});
  return d;
}

at::Tensor Swiglu(const at::Tensor& x, const ParameterPtr& bias) {
  if (x.is_cpu()) return row_ops::BiasSwiglu(x, BiasOrNone(bias));
  if (const auto* ops = DeviceRowOpsFor(x, &DeviceRowOps::TakesActivation))
    return ops->BiasSwiglu(x, BiasOrNone(bias));
  const int64_t half = x.size(1) / 2;
  const at::Tensor u = WithBias(x, bias);
  return at::silu(u.narrow(1, 0, half)).mul_(u.narrow(1, half, half));
}

row_ops::ActivationGrads SwigluBackward(const at::Tensor& dy, const at::Tensor& x,
                                        const ParameterPtr& bias, bool want_dbias) {
  if (x.is_cpu()) return row_ops::BiasSwigluBackward(dy, x, BiasOrNone(bias), want_dbias);
  if (const auto* ops = DeviceRowOpsFor(x, &DeviceRowOps::TakesActivation)) {
    return ops->BiasSwigluBackward(dy, x, BiasOrNone(bias), want_dbias);
  }
  const int64_t half = x.size(1) / 2;
  const at::Tensor u = WithBias(x, bias);
  const at::Tensor a = u.narrow(1, 0, half), b = u.narrow(1, half, half);
  row_ops::ActivationGrads d;
  d.dx = at::empty_like(x);
  d.dx.narrow(1, 0, half).copy_(at::silu_backward(dy * b, a));
  d.dx.narrow(1, half, half).copy_(at::silu(a).mul_(dy));
  if (want_dbias) d.dbias = at::sum(d.dx, {0});
  return d;
}

}  // namespace

at::Tensor BiasGeluOp(const at::Tensor& x, const ParameterPtr& bias) {
  if (bias != nullptr) bias->AwaitGather();
  at::Tensor y;
  {
    OpForward forward;
    y = Gelu(x, bias);
  }
  return RecordOp(y, {x, BiasOrNone(bias)},
                  [x = Detached(x), bias](const TensorList& grads, const NeedsGrad& needs) {
                    const auto d = GeluBackward(grads[0], x, bias, needs[1]);
                    return TensorList{d.dx, needs[1] ? DeliverGrad(*bias, d.dbias) : at::Tensor()};
                  });
}

at::Tensor BiasSwigluOp(const at::Tensor& x, const ParameterPtr& bias) {
  if (bias != nullptr) bias->AwaitGather();
  at::Tensor y;
  {
    OpForward forward;
    y = Swiglu(x, bias);
  }
  return RecordOp(y, {x, BiasOrNone(bias)},
                  [x = Detached(x), bias](const TensorList& grads, const NeedsGrad& needs) {
                    const auto d = SwigluBackward(grads[0], x, bias, needs[1]);
                    return TensorList{d.dx, needs[1] ? DeliverGrad(*bias, d.dbias) : at::Tensor()};
                  });
}

at::Tensor Activate(const at::Tensor& x, bool swiglu) {
  return swiglu ? Swiglu(x, nullptr) : Gelu(x, nullptr);
}

at::Tensor ActivateBackward(const at::Tensor& dy, const at::Tensor& x, bool swiglu) {
  return swiglu ? SwigluBackward(dy, x, nullptr, false).dx : GeluBackward(dy, x, nullptr, false).dx;
}

}  // namespace muster
