// How one group of parameters is updated from its gradients: Adam, SGD or Muon.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/optim/main_params.h"
#include "worker/optim/param_groups.h"
#include "worker/optim/update_kernels.h"

namespace muster {

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // What MainParam::states hold, as checkpoints name them.
  virtual std::vector<std::string> state_names() const = 0;
  // What of the coming Update has to talk to other ranks, with the same arguments: all of it
  // happens here, and only temporaries are written. Not every rule needs it.
  virtual absl::Status Prepare(const std::vector<MainParam>&, int /*index*/, const ParamGroup&,
                               const kernels::GradFactors&) {
    return absl::OkStatus();
  }
  // The step was skipped: forgets what Prepare made.
  virtual void Discard() {}
  // Updates main and states of the parameters whose group is `index` from their main_grad, and
  // writes copies back to the model. `group.step` counts this update already.
  virtual void Update(const std::vector<MainParam>& params, int index, const ParamGroup& group,
                      const kernels::GradFactors& factors) = 0;
};

// A piece of one parameter as plain arrays of the main dtype. Converts a gradient of another dtype
// when made, and the updated copy back to the model's dtype by StoreModel. CPU.
template <class T>
class PieceView {
 public:
  PieceView(const MainParam& param, int64_t begin, int64_t count);
  T* main() const { return main_; }
  const T* grad() const { return grad_; }
  T* state(int i) const;
  void StoreModel() const;

 private:
  const MainParam& param_;
  const int64_t begin_, count_;
  T* const main_;
  const T* grad_;
  T converted_[kUpdatePiece];
};

}  // namespace muster
