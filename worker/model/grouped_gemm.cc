#include "worker/model/grouped_gemm.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "common/base/check.h"
#include "worker/model/linear.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

constexpr int64_t kFewRows = 16;  // a group, on average

bool EachThreadItsGroups(const at::Tensor& x, const GroupRows& rows) {
  return x.is_cpu() && at::get_num_threads() > 1 && rows.size() > 1 &&
         x.size(0) < kFewRows * static_cast<int64_t>(rows.size());
}

struct Group {
  size_t index = 0;
  int64_t begin = 0, count = 0;  // rows
};

// Calls fn for groups [first, last), on this rank's threads where that is faster.
void ForGroups(const at::Tensor& x, const GroupRows& rows, size_t first, size_t last,
               const std::function<void(const Group&)>& fn) {
  std::vector<int64_t> begins(rows.size() + 1, 0);
  std::partial_sum(rows.begin(), rows.end(), begins.begin() + 1);
  MUSTER_CHECK(begins.back() == x.size(0));
  const auto run = [&](int64_t from, int64_t to) {
    // Threads of a pool do not inherit the caller's modes.
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::NoGradGuard no_grad;
    for (int64_t g = from; g < to; ++g) {
      const auto i = static_cast<size_t>(g);
      fn({.index = i, .begin = begins[i], .count = rows[i]});
    }
  };
  const auto from = static_cast<int64_t>(first), to = static_cast<int64_t>(last);
  if (EachThreadItsGroups(x, rows)) {
    at::parallel_for(from, to, 1, run);
  } else {
    run(from, to);
  }
}

// The faster library for the CPU (gemm.h) gives its result as a tensor of its own.
bool WritesElsewhere(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() != at::kDouble; }

// x (n, k), w (k, m), bias (m) or undefined -> y (n, m).
void Product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
             const at::Tensor& y) {
  if (WritesElsewhere(x)) {
    y.copy_(GemmNT(x, w.t(), bias));
    return;
  }
  at::Tensor out = y;
  at::mm_out(out, x, w);
  if (bias.defined()) out.add_(bias);
}

// Each group's rows of x through Product, one below the other: (R, m). `matrix`: (k, m) of a group.
at::Tensor GroupedProduct(const at::Tensor& x, const GroupRows& rows, int64_t width,
                          const std::function<at::Tensor(size_t group)>& matrix,
                          const std::vector<at::Tensor>& biases) {
  if (rows.size() == 1 && WritesElsewhere(x))
    return GemmNT(x, matrix(0).t(), biases.empty() ? at::Tensor() : biases[0]);
  const at::Tensor y = at::empty({x.size(0), width}, x.options().requires_grad(false));
  ForGroups(x, rows, 0, rows.size(), [&](const Group& g) {
    if (g.count == 0) return;
    Product(x.narrow(0, g.begin, g.count), matrix(g.index),
            biases.empty() ? at::Tensor() : biases[g.index], y.narrow(0, g.begin, g.count));
  });
  return y;
}

}  // namespace

at::Tensor GroupedGemmNT(const at::Tensor& x, const GroupRows& rows,
                         const std::vector<at::Tensor>& matrices,
                         const std::vector<at::Tensor>& biases) {
  const auto transposed = [&](size_t group) { return matrices[group].t(); };
  return GroupedProduct(x, rows, matrices[0].size(0), transposed, biases);
}

at::Tensor GroupedGemmNN(const at::Tensor& x, const GroupRows& rows,
                         const std::vector<at::Tensor>& matrices) {
  const auto as_it_is = [&](size_t group) { return matrices[group]; };
  return GroupedProduct(x, rows, matrices[0].size(1), as_it_is, {});
}

std::vector<at::Tensor> GroupedWeightGrads(const at::Tensor& a, const at::Tensor& b,
                                           const GroupRows& rows,
                                           const std::vector<ParameterPtr>& weights) {
  std::vector<at::Tensor> grads(weights.size());
  if (!EachThreadItsGroups(a, rows)) {
    ForGroups(a, rows, 0, rows.size(), [&](const Group& g) {
      const at::Tensor a_g = a.narrow(0, g.begin, g.count), b_g = b.narrow(0, g.begin, g.count);
      Parameter& weight = *weights[g.index];
      if (weight.main_grad.defined()) {
        weight.AccumulateGradGemm(a_g, b_g);
      } else {
        grads[g.index] = GemmTN(a_g, b_g);
      }
    });
    return grads;
  }
  // Sinks are told by the rank's own thread; no more products wait for that than there are threads.
  const auto at_once = static_cast<size_t>(at::get_num_threads());
  for (size_t first = 0; first < rows.size(); first += at_once) {
    const size_t last = std::min(first + at_once, rows.size());
    ForGroups(a, rows, first, last, [&](const Group& g) {
      grads[g.index] = GemmTN(a.narrow(0, g.begin, g.count), b.narrow(0, g.begin, g.count));
    });
    for (size_t i = first; i < last; ++i) grads[i] = DeliverGrad(*weights[i], grads[i]);
  }
  return grads;
}

}  // namespace muster
