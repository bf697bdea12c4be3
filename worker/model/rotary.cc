#include "worker/model/rotary.h"

#include <ATen/ATen.h>

#include "common/base/check.h"
#include "worker/ops/autograd_op.h"

namespace muster {

RotaryTable::RotaryTable(const TransformerConfig& config, at::ScalarType dtype, at::Device device,
                         ContextPlace place)
    : place_(place) {
  rotary_dim_ =
      static_cast<int64_t>(static_cast<double>(config.kv_channels) * config.rotary_percent);
  MUSTER_CHECK_MSG(rotary_dim_ > 0 && rotary_dim_ % 2 == 0, "rotary width must be even");
  const auto options = at::TensorOptions().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  // theta_i = base^(-2i/rot), i = 0 .. rot/2 - 1
  const at::Tensor exponent = at::arange(0, rotary_dim_, 2, options) / rotary_dim_;
  const at::Tensor inv_freq = 1.0 / at::pow(config.rotary_base, exponent);
  const at::Tensor angles =
      at::outer(at::arange(config.max_position_embeddings, options), inv_freq).unsqueeze(1);
  cos_ = at::cos(angles).to(device, dtype);
  sin_ = at::sin(angles).to(device, dtype);
  minus_sin_ = -sin_;
}

void RotaryTable::TurnRows(const at::Tensor& x, const at::Tensor& sin, int64_t first,
                           const at::Tensor& out) const {
  const int64_t seq = x.size(1), half = rotary_dim_ / 2, width = x.size(3);
  MUSTER_CHECK_MSG(first + seq <= cos_.size(0), "sequence longer than max_position_embeddings");
  const at::Tensor c = cos_.narrow(0, first, seq), s = sin.narrow(0, first, seq);
  const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  at::Tensor out_a = out.narrow(3, 0, half), out_b = out.narrow(3, half, half);
  at::mul_out(out_a, a, c).addcmul_(b, s, -1);
  at::mul_out(out_b, b, c).addcmul_(a, s);
  if (width > rotary_dim_) {
    const int64_t rest = width - rotary_dim_;
    out.narrow(3, rotary_dim_, rest).copy_(x.narrow(3, rotary_dim_, rest));
  }
}

void RotaryTable::Turn(const at::Tensor& x, const at::Tensor& sin, const at::Tensor& out) const {
  if (place_.size == 1) return TurnRows(x, sin, 0, out);
  const int64_t chunk = x.size(1) / 2;
  const int64_t first[2] = {place_.rank, 2 * place_.size - 1 - place_.rank};
  for (int half = 0; half < 2; ++half) {
    TurnRows(x.narrow(1, half * chunk, chunk), sin, first[half] * chunk,
             out.narrow(1, half * chunk, chunk));
  }
}

at::Tensor RotaryTable::Rotate(const at::Tensor& x) const {
  at::Tensor out = at::empty(x.sizes(), x.options());
  Turn(x, sin_, out);
  return out;
}

void RotaryTable::RotateInto(const at::Tensor& x, const at::Tensor& out) const {
  Turn(x, sin_, out);
}

at::Tensor RotaryTable::RotateBack(const at::Tensor& x) const {
  at::Tensor out = at::empty(x.sizes(), x.options());
  Turn(x, minus_sin_, out);
  return out;
}

void RotaryTable::RotateBackInto(const at::Tensor& x, const at::Tensor& out) const {
  Turn(x, minus_sin_, out);
}

at::Tensor RotaryTable::RotateOp(const at::Tensor& x) const {
  at::Tensor y;
  {
    OpForward forward;
    y = Rotate(x);
  }
  return RecordOp(y, {x}, [table = *this](const TensorList& grads, const NeedsGrad&) {
    return TensorList{table.RotateBack(grads[0])};
  });
}

}  // namespace muster
