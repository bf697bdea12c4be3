#include "worker/model/activation.h"

#include <ATen/ATen.h>

#include "worker/model/autograd_op.h"
#include "worker/model/linear.h"
#include "worker/model/row_ops.h"

namespace muster {
namespace {

at::Tensor WithBias(const at::Tensor& x, const ParameterPtr& bias) {
  return bias == nullptr ? x : x + bias->data;
}

at::Tensor BiasOrNone(const ParameterPtr& bias) {
  return bias == nullptr ? at::Tensor() : bias->data;
}

}  // namespace

at::Tensor BiasGeluOp(const at::Tensor& x, const ParameterPtr& bias) {
  at::Tensor y;
  {
    OpForward forward;
    y = x.is_cpu() ? row_ops::BiasGelu(x, BiasOrNone(bias)) : at::gelu(WithBias(x, bias));
  }
  return RecordOp(y, {x, BiasOrNone(bias)},
                  [x = Detached(x), bias](const TensorList& grads, const NeedsGrad& needs) {
                    row_ops::ActivationGrads d;
                    if (x.is_cpu()) {
                      d = row_ops::BiasGeluBackward(grads[0], x, BiasOrNone(bias), needs[1]);
                    } else {
                      d.dx = at::gelu_backward(grads[0].contiguous(), WithBias(x, bias));
                      if (needs[1]) d.dbias = at::sum(d.dx, {0});
                    }
                    return TensorList{d.dx, needs[1] ? DeliverGrad(*bias, d.dbias) : at::Tensor()};
                  });
}

namespace {

row_ops::ActivationGrads SwigluBackward(const at::Tensor& dy, const at::Tensor& x,
                                        const ParameterPtr& bias, bool want_dbias) {
  if (x.is_cpu()) return row_ops::BiasSwigluBackward(dy, x, BiasOrNone(bias), want_dbias);
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

at::Tensor BiasSwigluOp(const at::Tensor& x, const ParameterPtr& bias) {
  at::Tensor y;
  {
    OpForward forward;
    if (x.is_cpu()) {
      y = row_ops::BiasSwiglu(x, BiasOrNone(bias));
    } else {
      const int64_t half = x.size(1) / 2;
      const at::Tensor u = WithBias(x, bias);
      y = at::silu(u.narrow(1, 0, half)).mul_(u.narrow(1, half, half));
    }
  }
  return RecordOp(y, {x, BiasOrNone(bias)},
                  [x = Detached(x), bias](const TensorList& grads, const NeedsGrad& needs) {
                    const auto d = SwigluBackward(grads[0], x, bias, needs[1]);
                    return TensorList{d.dx, needs[1] ? DeliverGrad(*bias, d.dbias) : at::Tensor()};
                  });
}

}  // namespace muster
