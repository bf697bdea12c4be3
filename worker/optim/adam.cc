#include "worker/optim/adam.h"

#include <cmath>
#include <optional>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
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
void UpdateOneOnDevice(const MainParam& param, const kernels::AdamScalars& s,
                       const kernels::GradFactors& f) {
  at::Tensor p = param.main, m = param.states[0], v = param.states[1];
  const at::Tensor g = param.grad().to(p.scalar_type()).mul(f.unscale).mul_(f.clip);
  m.mul_(s.beta1).add_(g, 1 - s.beta1);
  v.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  at::Tensor update = m.mul(s.inverse_c1).div_(v.mul(s.inverse_c2).sqrt_().add_(s.eps));
  update.add_(p, s.weight_decay);
  p.sub_(update, s.lr);
}

// LibTorch's fused kernel takes all parameters at once: one pass over memory instead of a dozen,
// and a few launches instead of a dozen a parameter. It takes gradients of the main parameters'
// type.
void UpdateOnDevice(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                    const kernels::AdamScalars& s, const kernels::GradFactors& f) {
  std::vector<at::Tensor> mains, grads, m, v, models, copied;
  for (const MainParam& p : params) {
    if (p.group != index) continue;
    if (p.is_copy) {
      models.push_back(p.model());
      copied.push_back(p.main);
    }
    if (p.grad().scalar_type() != p.main.scalar_type()) {
      UpdateOneOnDevice(p, s, f);
      continue;
    }
    mains.push_back(p.main);
    grads.push_back(p.grad());
    m.push_back(p.states[0]);
    v.push_back(p.states[1]);
  }
  if (!mains.empty()) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(mains[0].device());
    const std::vector<at::Tensor> steps(mains.size(),
                                        at::full({}, static_cast<double>(group.step), options));
    // Gradients are scaled in place; nobody reads them after this. The kernel divides by
    // grad_scale, an fp32 number: too coarse for fp64 gradients.
    std::optional<at::Tensor> grad_scale;
    const double factor = f.unscale * f.clip;
    if (factor != 1.0 && grads[0].scalar_type() == at::kDouble) {
      at::_foreach_mul_(grads, factor);
    } else if (factor != 1.0) {
      grad_scale = at::full({}, 1.0 / factor, options);
    }
    at::_fused_adamw_(mains, grads, m, v, /*max_exp_avg_sqs=*/{}, steps, s.lr, s.beta1, s.beta2,
                      s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false, grad_scale);
  }
  if (!models.empty()) at::_foreach_copy_(models, copied);
}

}  // namespace

void Adam::Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                  const kernels::GradFactors& factors) {
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
    UpdateOnDevice(params, index, group, scalars, factors);
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
