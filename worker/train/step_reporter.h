// Tells the host what the job's steps and evaluations came to. One rank speaks for the job; all of
// the last stage remember its reports, since whoever sent them may be gone with its agent before
// the coordinator has them (JobState::recent_steps). One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "worker/train/job_state.h"
#include "worker/train/step_report.h"
#include "worker/train/timers.h"
#include "worker/train/trainer_host.h"

namespace muster {

class StepReporter {
 public:
  // Borrows both. `epoch`: in the messages. Forgets reports of a future that was discarded.
  StepReporter(JobState& state, TrainerHost& host, int64_t epoch);

  // This rank holds the reduced loss and speaks for the job.
  bool speaks() const { return speaks_; }

  // A committed step, with the time since the last one: takes the timers. `applied`: directives.
  void Report(const TrainStepResult& step, int64_t applied, Timers& timers);
  // The steps that attempts before have committed, as far as the ledger may lack them. Collective.
  absl::Status ReportAgain(int64_t applied, int64_t ledger_through);
  void ReportEvaluation(const std::string& split, const std::map<std::string, double>& losses,
                        bool final);

 private:
  void Keep(StepMessage message);

  JobState& state_;
  TrainerHost& host_;
  const int64_t epoch_;
  const bool speaks_;
  TrainingLog log_;
};

}  // namespace muster
