#include "worker/model/experts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/model/activation.h"
#include "worker/model/grouped_experts.h"
#include "worker/model/linear.h"
#include "worker/ops/autograd_op.h"

namespace muster {
namespace {

ExpertWeights MakeExpert(LayerBuild& build, const std::string& name) {
  const TransformerConfig& config = build.config;
  const int64_t hidden = config.hidden_size, ffn = config.moe.ffn_hidden_size;
  const int blocks = config.swiglu ? 2 : 1;
  const Partition fc1 = {.dim = 0, .stride = blocks, .expert = true};
  const std::string first = name + ".linear_fc1", second = name + ".linear_fc2";
  ExpertWeights expert;
  expert.fc1 = MakeParameter(build, first + ".weight", {ffn * blocks, hidden},
                             InitMethod::Normal(config.init_method_std), fc1);
  if (config.add_bias_linear) {
    expert.fc1_bias =
        MakeParameter(build, first + ".bias", {ffn * blocks}, InitMethod::Zeros(), fc1);
  }
  expert.fc2 = MakeParameter(build, second + ".weight", {hidden, ffn},
                             InitMethod::Normal(OutputInitStd(config)), {.dim = 1, .expert = true});
  if (config.add_bias_linear) {
    MUSTER_CHECK_MSG(build.ep.etp_size == 1, "each rank of a sum would add the bias");
    expert.fc2_bias =
        MakeParameter(build, second + ".bias", {hidden}, InitMethod::Zeros(), {.expert = true});
  }
  return expert;
}

at::Tensor OneExpert(const at::Tensor& x, const at::Tensor& probs, const ExpertWeights& expert,
                     bool swiglu) {
  const at::Tensor u = LinearOp(x, expert.fc1, nullptr);
  at::Tensor a = swiglu ? BiasSwigluOp(u, expert.fc1_bias) : BiasGeluOp(u, expert.fc1_bias);
  if (probs.defined()) a = Weighted(a, probs);
  const at::Tensor y = LinearOp(a, expert.fc2, nullptr);
  return expert.fc2_bias == nullptr ? y : AddBiasOp(y, expert.fc2_bias, probs);
}

}  // namespace

Experts::Experts(LayerBuild& build, const std::string& name)
    : swiglu_(build.config.swiglu),
      grouped_(build.config.moe.grouped_gemm),
      probs_on_input_(build.config.moe.apply_probs_on_input) {
  const int64_t local = build.config.moe.num_experts / build.ep.ep_size;
  for (int64_t i = 0; i < local; ++i) {
    experts_.push_back(
        MakeExpert(build, absl::StrCat(name, ".local_experts.", build.ep.ep_rank * local + i)));
  }
}

at::Tensor Experts::Forward(const Dispatched& rows) const {
  MUSTER_CHECK(rows.rows_per_expert.size() == experts_.size());
  const at::Tensor x = probs_on_input_ ? Weighted(rows.tokens, rows.probs) : rows.tokens;
  const at::Tensor probs = probs_on_input_ ? at::Tensor() : rows.probs;
  return (grouped_ ? GroupedExpertsOp : SequentialExperts)(x, probs, rows.rows_per_expert, experts_,
                                                           swiglu_);
}

at::Tensor SequentialExperts(const at::Tensor& x, const at::Tensor& probs,
                             const std::vector<int64_t>& rows_per_expert,
                             const std::vector<ExpertWeights>& experts, bool swiglu) {
  // Split at once: the backward pass puts the parts together once, where slices would each be a
  // whole.
  const std::vector<at::Tensor> parts = x.split_with_sizes(rows_per_expert);
  std::vector<at::Tensor> weights(experts.size());
  if (probs.defined()) weights = probs.split_with_sizes(rows_per_expert);
  std::vector<at::Tensor> outputs;
  for (size_t e = 0; e < experts.size(); ++e)
    outputs.push_back(OneExpert(parts[e], weights[e], experts[e], swiglu));
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs);
}

at::Tensor AddBiasOp(const at::Tensor& rows, const ParameterPtr& bias, const at::Tensor& scale) {
  bias->AwaitGather();
  at::Tensor y;
  {
    OpForward forward;
    y = rows.add(scale.defined() ? Weighted(bias->data.unsqueeze(0), scale) : bias->data);
  }
  return RecordOp(y, {rows, bias->data, scale},
                  [bias, scale](const TensorList& grads, const NeedsGrad& needs) {
                    TensorList result = {grads[0], {}, {}};
                    const at::Tensor& dy = grads[0];
                    if (needs[1]) {
                      const at::Tensor each = scale.defined() ? Weighted(dy, scale) : dy;
                      result[1] = DeliverGrad(*bias, at::sum(each, {0}));
                    }
                    if (needs[2]) {
                      result[2] = at::sum(dy.mul(bias->data), {1}).to(scale.scalar_type());
                    }
                    return result;
                  });
}

at::Tensor Weighted(const at::Tensor& rows, const at::Tensor& weights) {
  return rows.mul(weights.unsqueeze(1)).to(rows.scalar_type());
}

}  // namespace muster
