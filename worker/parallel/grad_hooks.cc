#include "worker/parallel/grad_hooks.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace muster {
namespace {

class MoveGradHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit MoveGradHook(const ParameterPtr& parameter) : parameter_(parameter) {}

  void operator()(const at::Tensor& tensor) override {
    // Weak: the parameter owns the tensor that owns this hook.
    const ParameterPtr parameter = parameter_.lock();
    if (parameter == nullptr || !parameter->main_grad.defined()) return;
    // The engine calls hooks for undefined gradients too: the parameter's backward function has
    // accumulated by itself.
    if (!tensor.grad().defined()) return;
    at::Tensor grad = std::move(tensor.mutable_grad());
    tensor.mutable_grad() = at::Tensor();
    parameter->AccumulateGrad(grad);
  }

 private:
  const std::weak_ptr<Parameter> parameter_;
};

}  // namespace

void InstallGradHook(const ParameterPtr& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter->data,
                                                 std::make_unique<MoveGradHook>(parameter));
}

void RemoveGradHook(Parameter& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.data, nullptr);
}

}  // namespace muster
