#include "coordinator/core/job_state.h"

namespace muster {

const char* JobStateName(JobState state) {
  switch (state) {
    case JobState::kSubmitted:
      return "SUBMITTED";
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kForming:
      return "FORMING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kEvaluating:
      return "EVALUATING";
    case JobState::kCheckpointing:
      return "CHECKPOINTING";
    case JobState::kRerunning:
      return "RERUNNING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kCompleted:
      return "COMPLETED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
    case JobState::kExited:
      return "EXITED";
  }
  return "?";
}

bool IsEnded(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed ||
         state == JobState::kCancelled || state == JobState::kExited;
}

bool IsActive(JobState state) {
  return !IsEnded(state) && state != JobState::kSubmitted && state != JobState::kQueued;
}

bool IsTrainingPhase(const std::string& phase) {
  return phase == "training" || phase == "evaluating" || phase == "saving";
}

}  // namespace muster
