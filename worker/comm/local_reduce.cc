#include "worker/comm/local_reduce.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace muster {

void Combine(at::Tensor& result, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  c10::NoGradGuard no_grad;
  switch (op) {
    case ReduceOp::kSum:
      if (result.scalar_type() == at::kBool) {
        at::logical_or_out(result, a, b);
      } else {
        at::add_out(result, a, b);
      }
      return;
    case ReduceOp::kMax:
      at::maximum_out(result, a, b);
      return;
    case ReduceOp::kMin:
      at::minimum_out(result, a, b);
      return;
  }
}

at::Tensor ReduceInOrder(const std::vector<at::Tensor>& parts, ReduceOp op) {
  c10::NoGradGuard no_grad;
  at::Tensor result = parts[0].detach().clone();
  for (size_t i = 1; i < parts.size(); ++i) Combine(result, result, parts[i].detach(), op);
  return result;
}

}  // namespace muster
