// What a step reports: the message to the agent, and Megatron's log line (reference 12.7). Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/control/messages.h"
#include "worker/train/job_state.h"
#include "worker/train/train_step.h"

namespace muster {

// `elapsed`: of this iteration, without evaluation and checkpoint. `learning_rate`: of the coming
// step, as Megatron prints it.
StepMessage MakeStepMessage(const JobState& state, const TrainStepResult& step,
                            absl::Duration elapsed, int64_t epoch, int64_t applied_directive,
                            std::map<std::string, double> timers_ms);

// The loss that stands for the job: "lm loss", or the first key.
double MainLoss(const std::map<std::string, double>& losses);

// One line for people. Averages are over the iterations since the last line. An interval of 0:
// none.
class TrainingLog {
 public:
  explicit TrainingLog(int64_t log_interval) : log_interval_(log_interval) {}
  // Returns the line to print after this step, or "". The first iteration of the process is printed
  // too.
  std::string Add(const StepMessage& step, const std::map<std::string, double>& losses,
                  int64_t train_iters);

 private:
  const int64_t log_interval_;
  bool first_ = true;
  int64_t advanced_ = 0, skipped_ = 0, nan_ = 0;
  double elapsed_ms_ = 0, tokens_ = 0;
  std::map<std::string, double> sums_;  // over iterations that were not skipped
};

}  // namespace muster
