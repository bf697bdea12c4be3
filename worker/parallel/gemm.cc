#include "worker/parallel/gemm.h"

#include <optional>
#include <string_view>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace muster {
namespace {

using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, std::string_view,
                                   c10::List<std::optional<at::Scalar>>,
                                   std::optional<std::string_view>);

// oneDNN's inner product with a fused epilogue, a registered operator where LibTorch has oneDNN.
const std::optional<c10::TypedOperatorHandle<LinearPointwise>>& OneDnnLinear() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<LinearPointwise>> {
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found.has_value()) return std::nullopt;
    return found->typed<LinearPointwise>();
  }();
  return handle;
}

}  // namespace

at::Tensor GemmNT(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (x.is_cpu() && x.scalar_type() == at::kHalf) {
    return GemmNT(x.to(at::kFloat), w.to(at::kFloat), bias.defined() ? bias.to(at::kFloat) : bias)
        .to(at::kHalf);
  }
  const bool one_dnn = x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
  if (one_dnn && OneDnnLinear().has_value()) {
    const std::optional<at::Tensor> b = bias.defined() ? std::optional(bias) : std::nullopt;
    return OneDnnLinear()->call(x, w, b, "none", c10::List<std::optional<at::Scalar>>(), "");
  }
  return bias.defined() ? at::addmm(bias, x, w.t()) : at::mm(x, w.t());
}

at::Tensor GemmNN(const at::Tensor& x, const at::Tensor& w) { return GemmNT(x, w.t()); }

at::Tensor GemmTN(const at::Tensor& a, const at::Tensor& b) { return GemmNT(a.t(), b.t()); }

at::Tensor GemmTNToFloat(const at::Tensor& a, const at::Tensor& b) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  if (a.is_cpu()) return GemmTN(a.to(at::kFloat), b.to(at::kFloat));
  return at::mm(a.t(), b, at::kFloat);
}

}  // namespace muster
