// Matrix products of rows that lie group by group, each group with a matrix of its own: rows
// [begin_g, begin_g + rows[g]) of x meet matrices[g]. Nothing is recorded.
//
// With many rows a group each product fills the machine by itself and they run in turn. With few
// rows on a CPU the time goes into reading the matrices, so each thread takes groups of its own.
// Nothing is read back from a device: the rows are known on the host.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/parameter.h"

namespace muster {

using GroupRows = std::vector<int64_t>;

// x (R, k), matrices (m, k), biases (m) each or no biases at all -> (R, m).
at::Tensor GroupedGemmNT(const at::Tensor& x, const GroupRows& rows,
                         const std::vector<at::Tensor>& matrices,
                         const std::vector<at::Tensor>& biases = {});
// x (R, m), matrices (m, k) -> (R, k).
at::Tensor GroupedGemmNN(const at::Tensor& x, const GroupRows& rows,
                         const std::vector<at::Tensor>& matrices);
// a (R, m), b (R, k): a_g^T b_g into the gradient of weights[g], (m, k). Returns what goes back to
// autograd for each: undefined where it went into main_grad.
std::vector<at::Tensor> GroupedWeightGrads(const at::Tensor& a, const at::Tensor& b,
                                           const GroupRows& rows,
                                           const std::vector<ParameterPtr>& weights);

}  // namespace muster
