#include "coordinator/core/directives.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

absl::StatusOr<Directive> DirectiveLog::Append(Directive directive) {
  if (last() - applied_ >= kMaxPending) {
    return absl::ResourceExhaustedError(
        absl::StrCat(last() - applied_, " directives wait for the trainers; try again later"));
  }
  if (last() >= kMaxLog) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this job has had ", kMaxLog, " directives, which is the limit"));
  }
  directive.number = last() + 1;
  log_.push_back(std::move(directive));
  return log_.back();
}

void DirectiveLog::Applied(int64_t through) {
  applied_ = std::max(applied_, std::min(through, last()));
}

std::vector<Directive> DirectiveLog::After(int64_t through) const {
  const int64_t first = std::clamp<int64_t>(through, 0, last());
  return {log_.begin() + first, log_.end()};
}

const Directive* DirectiveLog::LastStop() const {
  const auto ends = [](const Directive& directive) {
    return directive.kind == Directive::Kind::kStop ||
           directive.kind == Directive::Kind::kCheckpointAndStop;
  };
  const auto found = std::find_if(log_.rbegin(), log_.rend(), ends);
  return found == log_.rend() ? nullptr : &*found;
}

const char* DirectiveKindName(Directive::Kind kind) {
  switch (kind) {
    case Directive::Kind::kCheckpoint:
      return "checkpoint";
    case Directive::Kind::kEvaluate:
      return "evaluate";
    case Directive::Kind::kStop:
      return "stop";
    case Directive::Kind::kCheckpointAndStop:
      return "checkpoint_and_stop";
    case Directive::Kind::kTrace:
      return "trace";
    case Directive::Kind::kReform:
      return "reform";
    case Directive::Kind::kCheckpointAndExit:
      return "checkpoint_and_exit";
  }
  return "?";
}

}  // namespace muster
