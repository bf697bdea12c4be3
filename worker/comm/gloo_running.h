// One operation of a gloo group, from its start to its end. Internal to gloo_group.cc and
// gloo_check.cc.
#pragma once

#include "worker/comm/gloo_group.h"

namespace muster {

struct GlooGroup::Running {
  int64_t sequence = 0;
  Operation operation;    // emptied when done, which frees its tensors
  bool internal = false;  // a check, which the log does not show
  absl::Duration limit, deadline;
  // Guarded by the state's mutex.
  Works works;
  int num_left = 0;
  bool done = false;
  CondVar changed;
};

}  // namespace muster
