// The states of a job and of its ranks, by name. job_machine.h draws how they follow each other.
#pragma once

#include <string>

namespace muster {

enum class JobState {
  kSubmitted,
  kQueued,
  kForming,
  kRunning,
  kEvaluating,
  kCheckpointing,
  kRerunning,
  kRecovering,
  kCompleted,
  kFailed,
  kCancelled,
  kExited,
};
const char* JobStateName(JobState state);  // "QUEUED", ...
bool IsEnded(JobState state);
bool IsActive(JobState state);  // it has trainers: neither waiting nor ended

// Phases of a trainer in which it has joined its groups and works on the job.
bool IsTrainingPhase(const std::string& phase);

}  // namespace muster
