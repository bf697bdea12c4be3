// What is asked for at a step's boundary beyond the job's own schedule: by the directives that were
// agreed with the step, and by wishes to exit. The same on every rank. Pure.
#pragma once

#include <optional>
#include <string>

#include "common/control/messages.h"
#include "common/schedule/exit_policy.h"
#include "worker/train/open_step.h"

namespace muster {

struct BoundaryRequests {
  ExitInputs exit;                 // but for the iteration
  std::string evaluation;          // why; empty: nobody asks for one
  std::optional<Directive> trace;  // the newest one counts
  bool reform = false;             // the attempt ends here, once all else is done
};

BoundaryRequests RequestsOf(const TrainStepResult& step);

}  // namespace muster
