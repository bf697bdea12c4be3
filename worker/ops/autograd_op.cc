#include "worker/ops/autograd_op.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "common/base/check.h"

namespace muster {
namespace {

class OpNode final : public torch::autograd::Node {
 public:
  OpNode(size_t num_inputs, BackwardFunction backward)
      : num_inputs_(num_inputs), backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    MUSTER_CHECK_MSG(backward_ != nullptr, "backward ran a second time through a freed graph");
    NeedsGrad needs(num_inputs_);
    for (size_t i = 0; i < num_inputs_; ++i) needs[i] = task_should_compute_output(i);
    TensorList result = backward_(grads, needs);
    MUSTER_CHECK_MSG(result.size() == num_inputs_, "one gradient a recorded input");
    return result;
  }

  void release_variables() override { backward_ = nullptr; }
  std::string name() const override { return "muster::OpNode"; }

 private:
  const size_t num_inputs_;
  BackwardFunction backward_;
};

}  // namespace

TensorList RecordOp(TensorList outputs, const TensorList& inputs, BackwardFunction backward) {
  bool needed = false;
  for (const at::Tensor& input : inputs) needed |= input.defined() && input.requires_grad();
  if (!needed || !at::GradMode::is_enabled()) return outputs;
  std::shared_ptr<torch::autograd::Node> node(new OpNode(inputs.size(), std::move(backward)),
                                              torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                    : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
  return outputs;
}

at::Tensor RecordOp(at::Tensor output, const TensorList& inputs, BackwardFunction backward) {
  return RecordOp(TensorList{std::move(output)}, inputs, std::move(backward))[0];
}

at::Tensor Detached(const at::Tensor& tensor) { return tensor.detach(); }

}  // namespace muster
