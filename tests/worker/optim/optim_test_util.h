// Parameters by hand, and steps of an optimizer, for the tests of worker/optim.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/optim/optimizer.h"

namespace muster {

// Numbers that look random, the same in every process: sin(k), shifted by `phase`.
inline at::Tensor Waves(std::vector<int64_t> shape, double phase, at::ScalarType dtype) {
  int64_t numel = 1;
  for (int64_t size : shape) numel *= size;
  const at::Tensor k = at::arange(numel, at::kDouble);
  return (k * 1.7 + phase * 3.1 + k * k * 0.01).sin().view(shape).to(dtype);
}

inline ParameterPtr MakeParam(const std::string& name, const at::Tensor& values,
                              at::ScalarType grad_dtype) {
  auto p = std::make_shared<Parameter>();
  p->name = name;
  p->data = values.clone();
  p->main_grad = at::zeros(values.sizes(), grad_dtype);
  return p;
}

inline void SetGrad(Parameter& p, const at::Tensor& grad) {
  p.main_grad.copy_(grad);
  p.main_grad_is_zero = false;
}

inline void SetLr(Optimizer& optimizer, double lr, double weight_decay) {
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g)
    optimizer.SetGroupLr(static_cast<int>(g), groups[g].identity.max_lr.value_or(lr),
                         weight_decay * groups[g].identity.wd_mult);
}

// One whole step with the gradients that are set.
inline absl::Status StepOnce(Optimizer& optimizer, double lr, double weight_decay) {
  SetLr(optimizer, lr, weight_decay);
  ASSIGN_OR_RETURN(const PreparedStep prepared, optimizer.PrepareStep());
  if (!optimizer.CommitStep(prepared).success) return absl::InternalError("skipped");
  return optimizer.GatherUpdatedParams();
}

inline double LargestDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace muster
