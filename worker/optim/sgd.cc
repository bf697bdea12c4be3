#include "worker/optim/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

namespace muster {
namespace {

template <class T>
void UpdatePiece(const MainParam& param, int64_t begin, int64_t count,
                 const kernels::SgdScalars& scalars, const kernels::GradFactors& factors) {
  const PieceView<T> piece(param, begin, count);
  kernels::SgdUpdate(piece.main(), piece.state(0), piece.grad(), count, scalars, factors);
  piece.StoreModel();
}

// The same with tensor operations, for devices that are not the CPU.
void UpdateOnDevice(const MainParam& param, const kernels::SgdScalars& s,
                    const kernels::GradFactors& f) {
  at::Tensor p = param.main, b = param.states[0];
  const at::Tensor g = param.grad().to(p.scalar_type()).mul(f.unscale).mul_(f.clip);
  b.mul_(s.momentum).add_(g.add(p, s.weight_decay));
  p.sub_(b, s.lr);
  if (param.is_copy) param.model().copy_(p);
}

}  // namespace

void Sgd::Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                 const kernels::GradFactors& factors) {
  at::NoGradGuard no_grad;
  const kernels::SgdScalars scalars{
      .lr = group.lr, .weight_decay = group.weight_decay, .momentum = options_.momentum};
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
