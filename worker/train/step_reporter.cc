#include "worker/train/step_reporter.h"

#include <deque>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/train/evaluate.h"

namespace muster {
namespace {

// Whatever is on its way to the coordinator when an agent dies.
constexpr size_t kReportsKept = 64;

bool SpeaksForTheJob(const JobState& state) {
  const RankCoordinates& where = state.parallel.coordinates();
  return where.tp == 0 && where.cp == 0 && where.dp == 0 && IsLastStage(state);
}

}  // namespace

StepReporter::StepReporter(JobState& state, TrainerHost& host, int64_t epoch)
    : state_(state),
      host_(host),
      epoch_(epoch),
      speaks_(SpeaksForTheJob(state)),
      log_(state.spec.training.log_interval) {
  std::deque<StepMessage>& recent = state_.recent_steps;
  while (!recent.empty() && recent.back().iteration > state_.progress.iteration) recent.pop_back();
}

void StepReporter::Report(const TrainStepResult& step, int64_t applied, Timers& timers) {
  const absl::Duration elapsed = timers.Elapsed("interval-time");
  std::map<std::string, double> timers_ms = timers.TakeMilliseconds();
  if (!IsLastStage(state_)) return;
  StepMessage message =
      MakeStepMessage(state_, step, elapsed, epoch_, applied, std::move(timers_ms));
  Keep(message);
  if (!speaks_) return;
  std::map<std::string, double> losses = step.losses;
  losses.insert(step.side_losses.begin(), step.side_losses.end());
  const std::string line = log_.Add(message, losses, state_.train_iters);
  if (!line.empty()) {
    MUSTER_LOG(kInfo) << line;
  }
  host_.Send(std::move(message));
}

void StepReporter::Keep(StepMessage message) {
  message.epoch = 0;
  message.elapsed_ms = message.tokens_per_s = message.tflops_per_device = 0;
  message.memory_bytes = 0;
  message.timers_ms.clear();
  std::deque<StepMessage>& recent = state_.recent_steps;
  recent.push_back(std::move(message));
  if (recent.size() > kReportsKept) recent.pop_front();
}

absl::Status StepReporter::ReportAgain(int64_t applied, int64_t ledger_through) {
  std::optional<double> params_norm;
  if (state_.spec.training.log_params_norm) {
    ASSIGN_OR_RETURN(params_norm, state_.optimizer->ParamsNorm());
  }
  if (!IsLastStage(state_) || !state_.last_step.has_value()) return absl::OkStatus();
  TrainStepResult& step = *state_.last_step;
  step.params_norm = params_norm;
  std::deque<StepMessage>& recent = state_.recent_steps;
  while (!recent.empty() && recent.back().iteration >= state_.progress.iteration) recent.pop_back();
  Keep(MakeStepMessage(state_, step, absl::ZeroDuration(), epoch_, applied, {}));
  if (!speaks_) return absl::OkStatus();
  for (StepMessage message : recent) {
    message.epoch = epoch_;
    if (message.iteration > ledger_through) host_.Send(std::move(message));
  }
  return absl::OkStatus();
}

void StepReporter::ReportEvaluation(const std::string& split,
                                    const std::map<std::string, double>& losses, bool final) {
  if (!speaks_) return;
  const int64_t iteration = state_.progress.iteration;
  const double loss = MainLoss(losses);
  MUSTER_LOG(kInfo) << split << " loss at iteration " << iteration << ": " << loss << " ppl "
                    << Perplexity(loss);
  host_.Send(EvaluationMessage{.epoch = epoch_,
                               .iteration = iteration,
                               .split = split,
                               .lm_loss = loss,
                               .ppl = Perplexity(loss),
                               .final = final});
}

}  // namespace muster
