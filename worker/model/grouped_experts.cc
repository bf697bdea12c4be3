#include "worker/model/grouped_experts.h"

#include <utility>

#include <ATen/ops/sum.h>

#include "worker/model/activation.h"
#include "worker/model/grouped_gemm.h"
#include "worker/model/linear.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

// Recorded inputs: x, probs, then of each expert fc1, fc2 and, with biases, theirs.
constexpr size_t kBeforeWeights = 2;

struct Columns {
  std::vector<ParameterPtr> fc1, fc2, fc1_bias, fc2_bias;  // biases: empty without

  explicit Columns(const std::vector<ExpertWeights>& experts) {
    for (const ExpertWeights& expert : experts) {
      fc1.push_back(expert.fc1);
      fc2.push_back(expert.fc2);
      if (expert.fc1_bias != nullptr) fc1_bias.push_back(expert.fc1_bias);
      if (expert.fc2_bias != nullptr) fc2_bias.push_back(expert.fc2_bias);
    }
  }
  std::vector<ParameterPtr> All() const {
    std::vector<ParameterPtr> all = fc1;
    for (const auto* more : {&fc2, &fc1_bias, &fc2_bias})
      all.insert(all.end(), more->begin(), more->end());
    return all;
  }
};

std::vector<at::Tensor> DataOf(const std::vector<ParameterPtr>& parameters) {
  std::vector<at::Tensor> data;
  for (const ParameterPtr& parameter : parameters) data.push_back(parameter->data);
  return data;
}

// y rows of expert e += probs (or 1) times its bias.
void AddBiases(const at::Tensor& y, const at::Tensor& probs, const GroupRows& rows,
               const std::vector<ParameterPtr>& biases) {
  int64_t begin = 0;
  for (size_t e = 0; e < biases.size(); begin += rows[e++]) {
    const at::Tensor part = y.narrow(0, begin, rows[e]);
    const at::Tensor bias = biases[e]->data.unsqueeze(0);
    part.add_(probs.defined() ? Weighted(bias, probs.narrow(0, begin, rows[e])) : bias);
  }
}

// The sums over each expert's rows of d (R, C) into the gradients of its bias.
std::vector<at::Tensor> BiasGrads(const at::Tensor& d, const GroupRows& rows,
                                  const std::vector<ParameterPtr>& biases) {
  std::vector<at::Tensor> grads;
  int64_t begin = 0;
  for (size_t e = 0; e < biases.size(); begin += rows[e++])
    grads.push_back(DeliverGrad(*biases[e], at::sum(d.narrow(0, begin, rows[e]), {0})));
  return grads;
}

struct Saved {
  at::Tensor x, probs, u;  // u: before the activation, with its bias
  GroupRows rows;
  Columns weights;
  bool swiglu = false;
};

// Of the probabilities, (R): what each row's output says of its weight.
at::Tensor ProbGrads(const Saved& saved, const at::Tensor& dy, const at::Tensor& da,
                     const at::Tensor& activated) {
  // In the weights' type, as the sequential form's product is.
  at::Tensor d = at::sum(da.to(saved.probs.scalar_type()).mul(activated), {1});
  int64_t begin = 0;
  const std::vector<ParameterPtr>& biases = saved.weights.fc2_bias;
  for (size_t e = 0; e < biases.size(); begin += saved.rows[e++]) {
    const int64_t count = saved.rows[e];
    d.narrow(0, begin, count).add_(at::sum(dy.narrow(0, begin, count).mul(biases[e]->data), {1}));
  }
  return d.to(saved.probs.scalar_type());
}

TensorList Backward(const Saved& saved, const at::Tensor& dy, const NeedsGrad& needs) {
  const Columns& weights = saved.weights;
  const bool weighted = saved.probs.defined();
  const at::Tensor activated = Activate(saved.u, saved.swiglu);
  at::Tensor da = GroupedGemmNN(dy, saved.rows, DataOf(weights.fc2));  // of the weighted activation
  TensorList result = {{}, {}};
  if (needs[1]) result[1] = ProbGrads(saved, dy, da, activated);
  std::vector<at::Tensor> d_fc1, d_fc2, d_fc1_bias, d_fc2_bias;
  d_fc2 = GroupedWeightGrads(dy, weighted ? Weighted(activated, saved.probs) : activated,
                             saved.rows, weights.fc2);
  d_fc2_bias = BiasGrads(weighted ? Weighted(dy, saved.probs) : dy, saved.rows, weights.fc2_bias);
  if (weighted) da = Weighted(da, saved.probs);
  const at::Tensor du = ActivateBackward(da, saved.u, saved.swiglu);
  d_fc1_bias = BiasGrads(du, saved.rows, weights.fc1_bias);
  d_fc1 = GroupedWeightGrads(du, saved.x, saved.rows, weights.fc1);
  if (needs[0]) result[0] = GroupedGemmNN(du, saved.rows, DataOf(weights.fc1));
  for (const auto* grads : {&d_fc1, &d_fc2, &d_fc1_bias, &d_fc2_bias})
    result.insert(result.end(), grads->begin(), grads->end());
  return result;
}

}  // namespace

at::Tensor GroupedExpertsOp(const at::Tensor& x, const at::Tensor& probs,
                            const std::vector<int64_t>& rows_per_expert,
                            const std::vector<ExpertWeights>& experts, bool swiglu) {
  const Columns weights(experts);
  TensorList inputs = {x, probs};
  for (const ParameterPtr& parameter : weights.All()) {
    parameter->AwaitGather();
    inputs.push_back(parameter->data);
  }
  at::Tensor u, y;
  {
    OpForward forward;
    u = GroupedGemmNT(x, rows_per_expert, DataOf(weights.fc1), DataOf(weights.fc1_bias));
    at::Tensor a = Activate(u, swiglu);
    if (probs.defined()) {
      a = a.scalar_type() == probs.scalar_type() ? a.mul_(probs.unsqueeze(1)) : Weighted(a, probs);
    }
    y = GroupedGemmNT(a, rows_per_expert, DataOf(weights.fc2));
    AddBiases(y, probs, rows_per_expert, weights.fc2_bias);
  }
  Saved saved{.x = x,
              .probs = probs,
              .u = u,
              .rows = rows_per_expert,
              .weights = weights,
              .swiglu = swiglu};
  return RecordOp(y, inputs,
                  [saved = std::move(saved)](const TensorList& grads, const NeedsGrad& needs) {
                    return Backward(saved, grads[0].contiguous(), needs);
                  });
}

}  // namespace muster
