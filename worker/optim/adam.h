// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), with decoupled weight decay. The formula,
// as Megatron's (apex FusedAdam), is in update_kernels.h; one pass over memory a step.
#pragma once

#include "worker/optim/update_rule.h"

namespace muster {

class Adam : public UpdateRule {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  };
  explicit Adam(const Options& options) : options_(options) {}
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
              const kernels::GradFactors& factors) override;

 private:
  const Options options_;
};

}  // namespace muster
