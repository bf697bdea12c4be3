// The values that the optimizer updates: fp32 copies of bf16 and fp16 parameters, the parameters
// themselves for fp32 and fp64; and the optimizer's state beside them.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/parallel/parameter.h"

namespace muster {

struct MainParam {
  ParameterPtr parameter;
  int group = 0;                   // index into the optimizer's groups
  at::Tensor main;                 // parameter's shape; fp32, or fp64 for an fp64 parameter
  bool is_copy = false;            // false: main shares memory with parameter->data
  std::vector<at::Tensor> states;  // parameter's shape, main's dtype; zeros at first
};

// `num_states` tensors a parameter. Copies and states of equal dtype lie in one allocation, so that
// a snapshot copies few large pieces. Parameters must be contiguous and floating (checked).
std::vector<MainParam> MakeMainParams(const std::vector<std::vector<ParameterPtr>>& groups,
                                      int num_states);

// main <- the model's values (a model was loaded without its optimizer). Copies only.
void CopyModelToMain(const std::vector<MainParam>& params);
// The model's values <- main, rounded (mains were loaded).
void CopyMainToModel(const std::vector<MainParam>& params);

// Calls fn(param, begin, count) for pieces of at most kUpdatePiece elements that cover each
// parameter of `group` once, on this rank's threads.
inline constexpr int64_t kUpdatePiece = 4096;  // elements; its conversions stay in the L1 cache
void ForEachPiece(const std::vector<MainParam>& params, int group,
                  const std::function<void(const MainParam&, int64_t, int64_t)>& fn);

}  // namespace muster
