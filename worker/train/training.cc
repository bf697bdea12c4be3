#include "worker/train/training.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/schedule/from_spec.h"
#include "worker/train/checkpointing.h"
#include "worker/train/evaluate.h"
#include "worker/train/job_data.h"
#include "worker/train/job_saver.h"
#include "worker/train/job_state.h"
#include "worker/train/replica_check.h"
#include "worker/train/step_report.h"
#include "worker/train/step_trace.h"
#include "worker/train/train_step.h"

namespace muster {
namespace {

// The loop of Megatron's pretrain() and train() (reference 12.1, 12.2); its steps stand in files of
// their own.
class Training {
 public:
  Training(const TrainingOptions& options, std::unique_ptr<JobState> state, JobData data)
      : options_(options),
        state_(std::move(state)),
        data_(std::move(data)),
        agreement_(*options.world, options.host, options.directives_through, options.device),
        timers_(&options.clock),
        trace_({.state = *state_, .timers = timers_, .host = options.host, .epoch = options.epoch}),
        saver_(*state_, options.host, options.clock, options.epoch),
        log_(state_->spec.training.log_interval),
        eval_options_(EvalScheduleOptionsOf(state_->spec)),
        exit_options_(ExitOptionsOf(state_->spec)) {
    eval_options_.do_valid = data_.has_valid();
    eval_options_.do_test = data_.has_test();
    const RankCoordinates& where = state_->parallel.coordinates();
    reports_ = where.tp == 0 && where.cp == 0 && where.dp == 0 && IsLastStage(*state_);
  }

  absl::StatusOr<TrainingResult> Run() {
    const JobSpec& spec = state_->spec;
    if (!spec.training.skip_train && Iteration() < state_->train_iters) {
      RETURN_IF_ERROR(TrainUntilDone());
      if (left_early_) return Result();
    }
    if (!spec.training.skip_train && SaveAfterTraining(exit_options_, Iteration()))
      RETURN_IF_ERROR(SaveForGood());
    const FinalEvaluations final = EvaluateAtEnd(eval_options_, left_early_);
    if (final.valid) RETURN_IF_ERROR(EvaluateAndReport("valid", /*final=*/true));
    if (final.test) RETURN_IF_ERROR(EvaluateAndReport("test", /*final=*/true));
    if (result_.reason.empty()) {
      result_.reason = spec.training.skip_train
                           ? "evaluated without training"
                           : absl::StrCat("trained ", Iteration(), " iterations");
    }
    return Result();
  }

 private:
  int64_t Iteration() const { return state_->progress.iteration; }

  TrainingResult Result() {
    trace_.AwaitUpload();
    result_.iteration = Iteration();
    return result_;
  }

  absl::Status TrainUntilDone() {
    ASSIGN_OR_RETURN(const DataIterators data, data_.TrainIterators(*state_));
    // The first forward pass reads the parameters as they are here (reference 12.2).
    if (GathersBehindForward()) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/false));
    if (replica_check_interval().has_value()) RETURN_IF_ERROR(CheckReplicas(*state_));
    if (EvaluateAtStart(eval_options_, Iteration()).evaluate)
      RETURN_IF_ERROR(EvaluateAndReport("valid", false));
    Phase("training");
    timers_.Start("interval-time");
    std::optional<int64_t> num_microbatches;
    while (Iteration() < state_->train_iters && !left_early_) {
      const BatchSizes batch = state_->microbatches->Sizes(state_->progress.consumed_train_samples);
      if (num_microbatches.has_value() && batch.num_microbatches != *num_microbatches &&
          exit_options_.can_save) {
        RETURN_IF_ERROR(Save("the batch size grows"));
      }
      num_microbatches = batch.num_microbatches;
      if (IsToBeSkipped(Iteration() + 1)) {
        RETURN_IF_ERROR(SkipIteration(data));
        continue;
      }
      trace_.BeginStep(Iteration() + 1);
      ASSIGN_OR_RETURN(const TrainStepResult step,
                       TrainStep(*state_, data, agreement_, Wish(), timers_));
      // From the first step on that was not skipped.
      if (!step.skipped && !GathersBehindForward() && ddp().gathers_behind_forward())
        ddp().EnableForwardPreHook();
      options_.host.NoteProgress(options_.epoch, Iteration());
      Report(step);
      RETURN_IF_ERROR(trace_.EndStep());
      RETURN_IF_ERROR(AfterStep(step));
    }
    RETURN_IF_ERROR(trace_.EndEarly());
    if (timers_.IsRunning("interval-time")) timers_.Stop("interval-time");
    if (GathersBehindForward()) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/true));
    return absl::OkStatus();
  }

  // Evaluation, then checkpoint and exit, as agreed at this step (reference 12.2, 12.6).
  absl::Status AfterStep(const TrainStepResult& step) {
    ExitInputs inputs{.iteration = Iteration(),
                      .signal = step.decision.exit_wish == ExitWish::kSignal,
                      .duration_passed = step.decision.exit_wish == ExitWish::kDuration};
    std::string evaluation_requested;
    std::optional<Directive> trace_requested;
    for (const Directive& directive : step.directives) {
      const std::string reason =
          absl::StrCat("directive ", directive.number, ": ", directive.reason);
      switch (directive.kind) {
        case Directive::Kind::kCheckpoint:
          inputs.checkpoint_requested = reason;
          break;
        case Directive::Kind::kEvaluate:
          evaluation_requested = reason;
          break;
        case Directive::Kind::kStop:
          inputs.stop_requested = reason;
          break;
        case Directive::Kind::kCheckpointAndStop:
          inputs.checkpoint_and_stop_requested = reason;
          break;
        case Directive::Kind::kTrace:
          trace_requested = directive;  // the newest one counts
          break;
        case Directive::Kind::kReform:
          break;
      }
    }
    if (EvaluateAfterStep(eval_options_, Iteration(), evaluation_requested).evaluate) {
      RETURN_IF_ERROR(EvaluateAndReport("valid", /*final=*/false));
    }
    if (replica_check_interval().has_value() && Iteration() % *replica_check_interval() == 0)
      RETURN_IF_ERROR(CheckReplicas(*state_));
    const ExitDecision decision = DecideExit(exit_options_, inputs);
    if (decision.exit) {
      left_early_ = true;
      result_.reason = decision.reason;
      return decision.save ? SaveForGood() : absl::OkStatus();
    }
    if (decision.save) {
      RETURN_IF_ERROR(Save(decision.reason));
    } else if (saver_.RetryIsDue()) {
      RETURN_IF_ERROR(Save("again, after a failed save"));
    }
    return trace_requested.has_value() ? trace_.Begin(*trace_requested) : absl::OkStatus();
  }

  ExitWish Wish() {
    if (state_->spec.training.exit_signal_handler && options_.host.ExitSignalReceived())
      return ExitWish::kSignal;
    if (exit_options_.exit_duration_in_mins.has_value() &&
        options_.clock.Steady() - options_.process_start >
            absl::Minutes(*exit_options_.exit_duration_in_mins)) {
      return ExitWish::kDuration;
    }
    return ExitWish::kNone;
  }

  bool IsToBeSkipped(int64_t iteration) const {
    const std::vector<int64_t>& skip = state_->spec.training.iterations_to_skip;
    return std::find(skip.begin(), skip.end(), iteration) != skip.end();
  }

  const std::optional<int64_t>& replica_check_interval() const {
    return state_->spec.training.check_weight_hash_across_dp_replicas_interval;
  }
  DataParallel& ddp() { return *state_->ddp; }
  // Forward pre-hooks are on: a forward pass gathers the parameters that it is about to read.
  bool GathersBehindForward() { return state_->ddp != nullptr && ddp().forward_pre_hook_enabled(); }

  absl::Status SkipIteration(const DataIterators& data) {
    ASSIGN_OR_RETURN(const BatchSizes batch,
                     state_->microbatches->CheckedSizes(state_->progress.consumed_train_samples));
    for (const auto& iterator : data) {
      for (int64_t i = 0; i < batch.num_microbatches; ++i)
        RETURN_IF_ERROR(iterator->Next().status());
    }
    ++state_->progress.iteration;
    state_->progress.consumed_train_samples += batch.running_batch_size;
    state_->progress.skipped_train_samples += batch.running_batch_size;
    Event("skipped", absl::StrCat("iteration ", Iteration(),
                                  " skipped: it is in training.iterations_to_skip"));
    return absl::OkStatus();
  }

  void Report(const TrainStepResult& step) {
    const absl::Duration elapsed = timers_.Elapsed("interval-time");
    std::map<std::string, double> timers_ms = timers_.TakeMilliseconds();
    if (!reports_) return;
    StepMessage message = MakeStepMessage(*state_, step, elapsed, options_.epoch,
                                          agreement_.applied_through(), std::move(timers_ms));
    std::map<std::string, double> losses = step.losses;
    losses.insert(step.side_losses.begin(), step.side_losses.end());
    const std::string line = log_.Add(message, losses, state_->train_iters);
    if (!line.empty()) {
      MUSTER_LOG(kInfo) << line;
    }
    options_.host.Send(std::move(message));
  }

  absl::Status EvaluateAndReport(const std::string& split, bool final) {
    PauseInterval pause(*this, "evaluating");
    ASSIGN_OR_RETURN(const JobData::EvaluationPass pass, data_.Evaluation(*state_, split));
    const bool gathers = GathersBehindForward();
    if (gathers) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/true));
    ASSIGN_OR_RETURN(auto losses, Evaluate(*state_, pass));
    if (gathers) {
      RETURN_IF_ERROR(Annotate(options_.world->Barrier()->Wait(), "the end of evaluation"));
      ddp().EnableForwardPreHook();
    }
    if (split == "valid") state_->progress.consumed_valid_samples += pass.samples;
    if (!reports_) return absl::OkStatus();
    const double loss = MainLoss(losses);
    MUSTER_LOG(kInfo) << split << " loss at iteration " << Iteration() << ": " << loss << " ppl "
                      << Perplexity(loss);
    options_.host.Send(EvaluationMessage{.epoch = options_.epoch,
                                         .iteration = Iteration(),
                                         .split = split,
                                         .lm_loss = loss,
                                         .ppl = Perplexity(loss),
                                         .final = final});
    return absl::OkStatus();
  }

  absl::Status Save(const std::string& reason) {
    PauseInterval pause(*this, "saving");
    return saver_.Save(reason);
  }

  // A run that cannot save at its end says so with its exit code.
  absl::Status SaveForGood() {
    PauseInterval pause(*this, "saving");
    ASSIGN_OR_RETURN(
        const std::optional<std::string> failure,
        saver_.SaveForGood(result_.reason.empty() ? "the end of training" : result_.reason));
    if (!failure.has_value()) return absl::OkStatus();
    result_.exit_code = 1;
    result_.reason = absl::StrCat(result_.reason.empty() ? "trained to the end" : result_.reason,
                                  ", but the last checkpoint could not be saved: ", *failure);
    return absl::OkStatus();
  }

  void Phase(const char* phase) {
    options_.host.Send(PhaseMessage{.epoch = options_.epoch, .phase = phase, .detail = ""});
  }
  void Event(const char* kind, const std::string& text) {
    options_.host.Send(EventMessage{.epoch = options_.epoch, .kind = kind, .text = text});
  }

  // Evaluation and checkpoints are not training time.
  class PauseInterval {
   public:
    PauseInterval(Training& training, const char* phase)
        : training_(training),
          running_(training.timers_.IsRunning("interval-time")),
          traced_(training.state_->trace, TraceKind::kPart, phase) {
      if (running_) training_.timers_.Stop("interval-time");
      training_.Phase(phase);
    }
    ~PauseInterval() {
      training_.Phase("training");
      if (running_) training_.timers_.Start("interval-time");
    }

   private:
    Training& training_;
    const bool running_;
    const TraceScope traced_;
  };

  const TrainingOptions& options_;
  const std::unique_ptr<JobState> state_;
  const JobData data_;
  StepAgreement agreement_;
  Timers timers_;
  StepTrace trace_;
  JobSaver saver_;
  TrainingLog log_;
  EvalScheduleOptions eval_options_;
  const ExitOptions exit_options_;
  bool reports_ = false;  // this rank holds the reduced loss and speaks for the job
  bool left_early_ = false;
  TrainingResult result_;
};

}  // namespace

namespace {

absl::StatusOr<TrainingResult> BuildAndTrain(const TrainingOptions& options) {
  auto phase = [&](const char* name) {
    options.host.Send(PhaseMessage{.epoch = options.epoch, .phase = name, .detail = ""});
  };
  phase("building");
  ASSIGN_OR_RETURN(std::unique_ptr<JobState> state,
                   BuildJobState(options.spec, options.providers, options.world, options.device));
  phase("loading");
  ASSIGN_OR_RETURN(const std::optional<LoadedJob> loaded, LoadJob(*state));
  if (options.world->rank() == 0) {
    auto event = [&](std::string text) {
      options.host.Send(
          EventMessage{.epoch = options.epoch, .kind = "loaded", .text = std::move(text)});
    };
    if (loaded.has_value()) {
      event(absl::StrCat("loaded ", loaded->path, loaded->weights_only ? " (weights only)" : "",
                         ": the run begins at iteration ", state->progress.iteration));
      for (const std::string& note : loaded->notes) event(note);
    } else if (options.spec.checkpoint.load.has_value()) {
      event(absl::StrCat("checkpoint.load=", *options.spec.checkpoint.load,
                         " holds no checkpoint: the run begins at iteration 0"));
    }
  }
  phase("data");
  ASSIGN_OR_RETURN(JobData data, JobData::Build(*state, options.providers));
  Training training(options, std::move(state), std::move(data));
  return training.Run();
}

}  // namespace

absl::StatusOr<TrainingResult> RunTraining(const TrainingOptions& options) {
  // Tensor code throws. Whoever runs ranks wants a status: it has peers to free.
  try {
    return BuildAndTrain(options);
  } catch (const CollectiveError& error) {
    return error.status;
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace muster
