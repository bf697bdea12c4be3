#include "worker/model/shared_expert.h"

#include "worker/model/experts.h"
#include "worker/model/linear.h"

namespace muster {
namespace {

ParameterPtr MakeGate(LayerBuild& build, const std::string& name) {
  const TransformerConfig& config = build.config;
  if (!config.moe.shared_expert_gate) return nullptr;
  ParameterPtr gate = MakeParameter(build, name + ".gate_weight", {1, config.hidden_size},
                                    InitMethod::Normal(config.init_method_std));
  MarkSequenceParallel(build, gate);
  return gate;
}

}  // namespace

SharedExpert::SharedExpert(LayerBuild& build, const std::string& name)
    : gate_weight_(MakeGate(build, name)), mlp_(build, name, build.config.moe.shared_expert_ffn) {}

at::Tensor SharedExpert::Forward(const at::Tensor& x) const {
  at::Tensor y = mlp_.Forward(x);
  if (mlp_.bias() != nullptr) y = AddBiasOp(y, mlp_.bias(), {});
  if (gate_weight_ == nullptr) return y;
  return y.mul(LinearOp(x, gate_weight_, nullptr).sigmoid());
}

}  // namespace muster
