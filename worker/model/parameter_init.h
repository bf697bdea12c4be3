// Scope in which the parameters that this thread makes get memory and no values, and the random
// regions are not drawn from: for a model whose every element comes from elsewhere before anybody
// reads it (a state that peers, snapshots or a checkpoint fill). Like at::NoGradGuard a matter of
// the thread, so that models of plugins that are made of our layers follow it unchanged.
#pragma once

namespace muster {

class WithoutParameterInit {
 public:
  WithoutParameterInit();
  ~WithoutParameterInit();
  WithoutParameterInit(const WithoutParameterInit&) = delete;
  WithoutParameterInit& operator=(const WithoutParameterInit&) = delete;

  static bool active();

 private:
  const bool before_;
};

}  // namespace muster
