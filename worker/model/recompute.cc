#include "worker/model/recompute.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include "common/base/check.h"
#include "worker/parallel/rng.h"

namespace muster {
namespace {

// Leaves of the second run's graph: the same data, gradients wanted where they were.
TensorList Leaves(const TensorList& inputs, const std::vector<bool>& wanted) {
  TensorList leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].defined() ? Detached(inputs[i]) : at::Tensor());
    if (wanted[i]) leaves.back().set_requires_grad(true);
  }
  return leaves;
}

// The second run, recorded, under the random states of the first.
TensorList RunAgain(const std::vector<at::Generator>& regions, const RngSnapshot& before,
                    const Segment& segment, const TensorList& leaves) {
  const RngRestore restore(regions);  // on the way out, exceptions included
  before.Restore();
  at::AutoGradMode record(true);
  return segment(leaves);
}

}  // namespace

TensorList Recompute(const std::vector<at::Generator>& regions, const TensorList& inputs,
                     Segment segment) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  const RngSnapshot before(regions);
  TensorList outputs;
  {
    at::NoGradGuard no_grad;
    OpForward forward;
    outputs = segment(inputs);
  }
  TensorList kept;
  std::vector<bool> wanted;
  for (const at::Tensor& input : inputs) {
    kept.push_back(input.defined() ? Detached(input) : at::Tensor());
    wanted.push_back(input.defined() && input.requires_grad());
  }
  // The segment's parameters need its backward even where no input does.
  TensorList recorded = inputs;
  recorded.push_back(at::empty({0}).set_requires_grad(true));
  return RecordOp(std::move(outputs), recorded,
                  [regions, before, segment = std::move(segment), kept, wanted](
                      const TensorList& grads, const NeedsGrad&) {
                    const TensorList leaves = Leaves(kept, wanted);
                    const TensorList again = RunAgain(regions, before, segment, leaves);
                    MUSTER_CHECK(again.size() == grads.size());
                    TensorList roots, root_grads;
                    for (size_t i = 0; i < again.size(); ++i) {
                      if (!grads[i].defined() || !again[i].requires_grad()) continue;
                      roots.push_back(again[i]);
                      root_grads.push_back(grads[i]);
                    }
                    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
                    TensorList result;
                    for (size_t i = 0; i < leaves.size(); ++i) {
                      result.push_back(wanted[i] ? leaves[i].grad() : at::Tensor());
                    }
                    result.emplace_back();
                    return result;
                  });
}

}  // namespace muster
