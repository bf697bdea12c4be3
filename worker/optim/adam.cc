#include "worker/optim/adam.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

namespace muster {
namespace {

template <class T>
void UpdatePiece(const MainParam& param, int64_t begin, int64_t count,
                 const kernels::AdamScalars& scalars, const kernels::GradFactors& factors) {
  const PieceView<T> piece(param, begin, count);
  kernels::AdamUpdate(piece.main(), piece.state(0), piece.state(1), piece.grad(), count, scalars,
                      factors);
  piece.StoreModel();
}

// The same with tensor operations, for devices that are not the CPU.
void UpdateOnDevice(const MainParam& param, const kernels::AdamScalars& s,
                    const kernels::GradFactors& f) {
  at::Tensor p = param.main, m = param.states[0], v = param.states[1];
  const at::Tensor g = param.parameter->main_grad.to(p.scalar_type()).mul(f.unscale).mul_(f.clip);
  m.mul_(s.beta1).add_(g, 1 - s.beta1);
  v.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  at::Tensor update = m.mul(s.inverse_c1).div_(v.mul(s.inverse_c2).sqrt_().add_(s.eps));
  update.add_(p, s.weight_decay);
  p.sub_(update, s.lr);
  if (param.is_copy) param.parameter->data.copy_(p);
}

}  // namespace

void Adam::Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                  const kernels::GradFactors& factors) const {
  at::NoGradGuard no_grad;
  const double step = static_cast<double>(group.step);
  const kernels::AdamScalars scalars{
      .lr = group.lr,
      .weight_decay = group.weight_decay,
      .beta1 = options_.beta1,
      .beta2 = options_.beta2,
      .eps = options_.eps,
      .inverse_c1 = 1.0 / (1.0 - std::pow(options_.beta1, step)),
      .inverse_c2 = 1.0 / (1.0 - std::pow(options_.beta2, step)),
  };
  if (!params.empty() && !params[0].main.is_cpu()) {
    for (const MainParam& p : params)
      if (p.group == index) UpdateOnDevice(p, scalars, factors);
    return;
  }
  ForEachPiece(params, index, [&](const MainParam& param, int64_t begin, int64_t count) {
    if (param.main.scalar_type() == at::kDouble) {
      UpdatePiece<double>(param, begin, count, scalars, factors);
    } else {
      UpdatePiece<float>(param, begin, count, scalars, factors);
    }
  });
}

}  // namespace muster
