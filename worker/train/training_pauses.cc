#include "worker/train/training_pauses.h"

#include "common/base/status.h"
#include "worker/train/evaluate.h"

namespace muster {

class TrainingPauses::Pause {
 public:
  Pause(const Options& options, const char* phase)
      : options_(options),
        running_(options.timers.IsRunning("interval-time")),
        traced_(options.state.trace, TraceKind::kPart, phase) {
    if (running_) options_.timers.Stop("interval-time");
    Phase(phase);
  }
  ~Pause() {
    Phase("training");
    if (running_) options_.timers.Start("interval-time");
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  void Phase(const char* phase) {
    options_.host.Send(PhaseMessage{.epoch = options_.epoch, .phase = phase, .detail = ""});
  }

  const Options& options_;
  const bool running_;
  const TraceScope traced_;
};

TrainingPauses::TrainingPauses(const Options& options)
    : options_(options), saver_(options.state, options.host, options.clock, options.epoch) {}

absl::Status TrainingPauses::Evaluate(const std::string& split, bool final) {
  const Pause pause(options_, "evaluating");
  JobState& state = options_.state;
  ASSIGN_OR_RETURN(const JobData::EvaluationPass pass, options_.data.Evaluation(state, split));
  // Forward passes of an evaluation gather nothing: all is gathered before.
  const bool gathers = state.ddp != nullptr && state.ddp->forward_pre_hook_enabled();
  if (gathers) RETURN_IF_ERROR(state.ddp->DisableForwardPreHook(/*param_sync=*/true));
  ASSIGN_OR_RETURN(const auto losses, muster::Evaluate(state, pass));
  if (gathers) {
    RETURN_IF_ERROR(Annotate(state.parallel.world().Barrier()->Wait(), "the end of evaluation"));
    state.ddp->EnableForwardPreHook();
  }
  if (split == "valid") state.progress.consumed_valid_samples += pass.samples;
  options_.reporter.ReportEvaluation(split, losses, final);
  return absl::OkStatus();
}

absl::Status TrainingPauses::Save(const std::string& reason) {
  const Pause pause(options_, "saving");
  return saver_.Save(reason);
}

absl::StatusOr<std::optional<std::string>> TrainingPauses::SaveForGood(const std::string& reason) {
  const Pause pause(options_, "saving");
  return saver_.SaveForGood(reason);
}

}  // namespace muster
