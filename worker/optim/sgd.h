// SGD with momentum and coupled weight decay, as torch.optim.SGD (reference 7.1); the formula is in
// update_kernels.h.
#pragma once

#include "worker/optim/update_rule.h"

namespace muster {

class Sgd : public UpdateRule {
 public:
  struct Options {
    double momentum = 0.9;
  };
  explicit Sgd(const Options& options) : options_(options) {}
  std::vector<std::string> state_names() const override { return {"momentum_buffer"}; }
  void Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
              const kernels::GradFactors& factors) override;

 private:
  const Options options_;
};

}  // namespace muster
