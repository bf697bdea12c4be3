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

RankStage StageOfPhase(const std::string& phase) {
  if (phase == "launched") return RankStage::kStart;
  if (phase == "forming") return RankStage::kForming;
  if (phase == "training") return RankStage::kStep;
  if (phase == "evaluating") return RankStage::kEvaluation;
  if (phase == "saving") return RankStage::kSave;
  if (phase == "yielded") return RankStage::kYielded;
  return RankStage::kLoad;
}

std::optional<WaitPhase> WaitPhaseOf(RankStage stage) {
  switch (stage) {
    case RankStage::kStart:
      return WaitPhase::kStart;
    case RankStage::kForming:
      return WaitPhase::kForming;
    case RankStage::kLoad:
      return WaitPhase::kLoad;
    case RankStage::kStep:
      return WaitPhase::kStep;
    case RankStage::kEvaluation:
      return WaitPhase::kEvaluation;
    case RankStage::kSave:
      return WaitPhase::kSave;
    case RankStage::kYielded:
    case RankStage::kDone:
    case RankStage::kGone:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace muster
