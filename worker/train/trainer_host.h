// What the training loop tells and asks the outside: the agent's socket in the daemon, a recorder
// in tests. Thread-safe.
#pragma once

#include <vector>

#include "common/control/messages.h"

namespace muster {

class TrainerHost {
 public:
  virtual ~TrainerHost() = default;
  // Never blocks the caller.
  virtual void Send(TrainerToAgent message) = 0;
  // Directives that arrived since the last call, in any order, repeated or not.
  virtual std::vector<Directive> TakeDirectives() = 0;
  // True once a termination signal asked this process to checkpoint and exit.
  virtual bool ExitSignalReceived() = 0;
};

}  // namespace muster
