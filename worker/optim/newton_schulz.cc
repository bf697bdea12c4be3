#include "worker/optim/newton_schulz.h"

#include <iterator>

#include <ATen/ops/addmm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/parallel/flat_ops.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

struct Step {
  double a, b, c;
};
// Tuned per step for steep growth of small singular values; the last ones settle around one.
constexpr Step kQuintic[] = {{4.0848, -6.8946, 2.9270},
                             {3.9505, -6.3029, 2.6377},
                             {3.7418, -5.5913, 2.3037},
                             {2.8769, -3.1427, 1.2046},
                             {2.8366, -3.0525, 1.2012}};
constexpr Step kSimple[] = {{3.4445, -4.7750, 2.0315}};

Step StepAt(NewtonSchulzOptions::Coefficients coefficients, int i) {
  if (coefficients == NewtonSchulzOptions::Coefficients::kSimple)
    return kSimple[i % std::size(kSimple)];
  return kQuintic[i % std::size(kQuintic)];
}

bool ByOneDnn(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

// x x^T
at::Tensor Gram(const at::Tensor& x) { return ByOneDnn(x) ? GemmNT(x, x) : at::mm(x, x.t()); }

// beta add + alpha x y for a symmetric x. bf16: sums and the addition in fp32, rounded once.
at::Tensor AddProduct(const at::Tensor& add, double beta, const at::Tensor& x, const at::Tensor& y,
                      double alpha) {
  if (ByOneDnn(x)) return GemmNN(x, y).mul_(alpha).add_(add, beta);
  return at::addmm(add, x, y, beta, alpha);
}

// Sum of squares, a scalar fp64 tensor; on a GPU, which is not waited for.
at::Tensor SquaredNorm(const at::Tensor& d) {
  if (d.is_cpu()) return at::tensor(SumOfSquares(d), at::kDouble);
  return at::square(d.to(at::kDouble)).sum();  // not in place: `to` may give d itself
}

// `group`: A is added up over it.
absl::StatusOr<at::Tensor> Iterate(const at::Tensor& d, const at::Tensor& squared_norm,
                                   const NewtonSchulzOptions& options, Communicator* group) {
  const at::ScalarType dtype = d.scalar_type();
  const at::Tensor norm = squared_norm.sqrt().clamp_min_(1e-15).to(dtype);
  at::Tensor x = d.div(norm);
  if (options.bf16_iteration && dtype == at::kFloat) x = x.to(at::kBFloat16);
  for (int i = 0; i < options.num_steps; ++i) {
    const Step step = StepAt(options.coefficients, i);
    at::Tensor a = Gram(x);  // (rows, rows)
    if (group != nullptr) RETURN_IF_ERROR(group->AllReduce(a, ReduceOp::kSum)->Wait());
    x = AddProduct(x, step.a, AddProduct(a, step.b, a, a, step.c), x, 1.0);
  }
  return x.to(dtype);
}

void CheckInput(const at::Tensor& d) {
  MUSTER_CHECK(d.dim() == 2 && d.is_contiguous());
  MUSTER_CHECK(d.scalar_type() == at::kFloat || d.scalar_type() == at::kDouble);
}

}  // namespace

at::Tensor NewtonSchulz(const at::Tensor& d, const NewtonSchulzOptions& options) {
  CheckInput(d);
  const bool tall = d.size(0) > d.size(1);
  const at::Tensor wide = tall ? d.t().contiguous() : d;
  at::Tensor x = *Iterate(wide, SquaredNorm(d), options, nullptr);
  return tall ? x.t().contiguous() : x;
}

absl::StatusOr<at::Tensor> NewtonSchulzSplit(const at::Tensor& d,
                                             const NewtonSchulzOptions& options,
                                             Communicator& group) {
  CheckInput(d);
  at::Tensor squared_norm = SquaredNorm(d);
  RETURN_IF_ERROR(group.AllReduce(squared_norm, ReduceOp::kSum)->Wait());
  return Iterate(d, squared_norm, options, &group);
}

}  // namespace muster
