// The values that the optimizer updates: fp32 copies of bf16 and fp16 parameters, the parameters
// themselves for fp32 and fp64; and the optimizer's state beside them. With the distributed
// optimizer all of it exists for this rank's shards only, as 1-D tensors (reference 6.6).
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/owned_shard.h"
#include "worker/parallel/parameter.h"

namespace muster {

// The final gradient of what is owned. A whole parameter's main_grad may be another tensor in the
// next step.
inline const at::Tensor& GradOf(const OwnedShard& shard) {
  return shard.is_whole() ? shard.parameter->main_grad : shard.grad;
}

struct MainParam {
  OwnedShard shard;
  int group = 0;                   // index into the optimizer's groups
  at::Tensor main;                 // shard.data's shape; fp32, or fp64 for an fp64 parameter
  bool is_copy = false;            // false: main shares memory with shard.data
  std::vector<at::Tensor> states;  // shard.data's shape, main's dtype; zeros at first

  const Parameter& parameter() const { return *shard.parameter; }
  const at::Tensor& model() const { return shard.data; }
  const at::Tensor& grad() const { return GradOf(shard); }
};

// `groups`: what this rank owns of each group; `num_states`: tensors a parameter of each group.
// Copies and states of equal dtype lie in one allocation, so that a snapshot copies few large
// pieces. Shards must be contiguous and floating (checked).
std::vector<MainParam> MakeMainParams(const std::vector<std::vector<OwnedShard>>& groups,
                                      const std::vector<int>& num_states);

// main <- the model's values (a model was loaded without its optimizer). Copies only.
void CopyModelToMain(const std::vector<MainParam>& params);
// The model's values <- main, rounded (mains were loaded).
void CopyMainToModel(const std::vector<MainParam>& params);

// Calls fn(param, begin, count) for pieces of at most kUpdatePiece elements that cover each
// parameter of `group` once, on this rank's threads.
inline constexpr int64_t kUpdatePiece = 4096;  // elements; its conversions stay in the L1 cache
using PieceFn = std::function<void(const MainParam&, int64_t begin, int64_t count)>;
void ForEachPiece(const std::vector<MainParam>& params, int group, const PieceFn& fn);
void ForEachPieceOf(const MainParam& param, const PieceFn& fn);

}  // namespace muster
