#include "worker/comm/local_reduce.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace muster {

void Accumulate(at::Tensor& target, const at::Tensor& other, ReduceOp op) {
  c10::NoGradGuard no_grad;
  switch (op) {
    case ReduceOp::kSum:
      if (target.scalar_type() == at::kBool) {
        target.logical_or_(other);
      } else {
        target.add_(other);
      }
      return;
    case ReduceOp::kMax:
      at::maximum_out(target, target, other);
      return;
    case ReduceOp::kMin:
      at::minimum_out(target, target, other);
      return;
  }
}

at::Tensor ReduceInOrder(const std::vector<at::Tensor>& parts, ReduceOp op) {
  c10::NoGradGuard no_grad;
  at::Tensor result = parts[0].detach().clone();
  for (size_t i = 1; i < parts.size(); ++i) Accumulate(result, parts[i].detach(), op);
  return result;
}

}  // namespace muster
