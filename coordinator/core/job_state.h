// The states of a job and of its ranks, by name. job_machine.h draws how they follow each other.
#pragma once

#include <optional>
#include <string>

#include "coordinator/core/phase_limits.h"

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

// How far a rank has come. The first six are the phases of common waits, in the order in which a
// trainer goes through them. kYielded: it has stopped at a step's boundary for a planned change.
enum class RankStage { kStart, kForming, kLoad, kStep, kEvaluation, kSave, kYielded, kDone, kGone };
inline constexpr int kNumRankStages = 9;
// Of a phase as a trainer names it. A name that is not known here is one of preparing itself.
RankStage StageOfPhase(const std::string& phase);
// The wait that a rank of this stage is in; nullopt: it waits for nothing.
std::optional<WaitPhase> WaitPhaseOf(RankStage stage);

}  // namespace muster
