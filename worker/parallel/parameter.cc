#include "worker/parallel/parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/parallel/gemm.h"

namespace muster {

void Parameter::AccumulateGrad(const at::Tensor& grad) {
  MUSTER_CHECK_MSG(main_grad.defined(), absl::StrCat(name, " has no main_grad"));
  if (sink != nullptr) sink->GradComing(*this);
  at::NoGradGuard no_grad;
  // The first contribution of a step overwrites, so that nobody has to fill the buffer with zeros.
  if (main_grad_is_zero) {
    main_grad.copy_(grad);
  } else {
    main_grad.add_(grad);
  }
  main_grad_is_zero = false;
  if (sink != nullptr) sink->GradReady(*this);
}

void Parameter::AccumulateGradGemm(const at::Tensor& a, const at::Tensor& b) {
  MUSTER_CHECK_MSG(main_grad.defined(), absl::StrCat(name, " has no main_grad"));
  at::NoGradGuard no_grad;
  if (main_grad.scalar_type() == at::kDouble && a.scalar_type() == at::kDouble) {
    if (sink != nullptr) sink->GradComing(*this);
    const at::Tensor a_t = a.t();  // (out, n), a view: the product reads it transposed
    if (main_grad_is_zero) {
      at::mm_out(main_grad, a_t, b);
    } else {
      main_grad.addmm_(a_t, b);
    }
    main_grad_is_zero = false;
    if (sink != nullptr) sink->GradReady(*this);
    return;
  }
  if (a.scalar_type() == at::kHalf && main_grad.scalar_type() == at::kFloat) {
    return AccumulateGrad(GemmTNToFloat(a, b));
  }
  // A product of its own and one pass over the weight: the faster library gives no sum in place.
  // bf16 operands are accumulated in fp32 and rounded once.
  AccumulateGrad(GemmTN(a, b));
}

void Parameter::AccumulateGradRows(const at::Tensor& ids, const at::Tensor& rows) {
  MUSTER_CHECK_MSG(main_grad.defined(), absl::StrCat(name, " has no main_grad"));
  if (sink != nullptr) sink->GradComing(*this);
  at::NoGradGuard no_grad;
  if (main_grad_is_zero) main_grad.zero_();
  main_grad.index_add_(0, ids, rows.to(main_grad.scalar_type()));
  main_grad_is_zero = false;
  if (sink != nullptr) sink->GradReady(*this);
}

}  // namespace muster
