#include "worker/train/boundary_requests.h"

#include "absl/strings/str_cat.h"

namespace muster {

BoundaryRequests RequestsOf(const TrainStepResult& step) {
  BoundaryRequests requests{
      .exit = {.signal = step.decision.exit_wish == ExitWish::kSignal,
               .duration_passed = step.decision.exit_wish == ExitWish::kDuration}};
  for (const Directive& directive : step.directives) {
    const std::string reason = absl::StrCat("directive ", directive.number, ": ", directive.reason);
    switch (directive.kind) {
      case Directive::Kind::kCheckpoint:
        requests.exit.checkpoint_requested = reason;
        break;
      case Directive::Kind::kEvaluate:
        requests.evaluation = reason;
        break;
      case Directive::Kind::kStop:
        requests.exit.stop_requested = reason;
        break;
      case Directive::Kind::kCheckpointAndStop:
        requests.exit.checkpoint_and_stop_requested = reason;
        break;
      case Directive::Kind::kTrace:
        requests.trace = directive;
        break;
      case Directive::Kind::kReform:
        requests.reform = true;
        break;
      case Directive::Kind::kCheckpointAndExit:
        break;  // of a step that is held: this one was committed
    }
  }
  return requests;
}

}  // namespace muster
