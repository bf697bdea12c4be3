// The orthogonal factor of a matrix by Newton-Schulz iterations: pushes all singular values towards
// one (Jordan et al. 2024, "Muon"; reference 7.2; Megatron takes it from emerging_optimizers).
//
//   X <- D / max(||D||_F, 1e-15)
//   per step, with coefficients (a, b, c):  A = X X^T;  X <- a X + (b A + c A A) X
//
// The coefficients are the set's in turn, from the first again after the last.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace muster {

struct NewtonSchulzOptions {
  enum class Coefficients { kQuintic, kSimple };
  int num_steps = 5;
  Coefficients coefficients = Coefficients::kQuintic;
  // The iteration of an fp32 matrix runs in bf16 with sums in fp32 (Megatron's matmul precision
  // "medium", whatever the type of the model's parameters); false ("high"): in fp32. An fp64 matrix
  // is always iterated in fp64.
  bool bf16_iteration = true;
};

// `d` (rows, cols), fp32 or fp64, contiguous -> the same shape and type. Wide matrices are cheaper
// (the product A has the smaller side); tall ones are transposed inside.
at::Tensor NewtonSchulz(const at::Tensor& d, const NewtonSchulzOptions& options);

// `d` (rows, this rank's cols): a slice of the columns of a matrix that is split over `group`. Norm
// and A are added up over the group, X stays split: num_steps + 1 reductions. Collective.
absl::StatusOr<at::Tensor> NewtonSchulzSplit(const at::Tensor& d,
                                             const NewtonSchulzOptions& options,
                                             Communicator& group);

}  // namespace muster
