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
#include "worker/train/live_state.h"
#include "worker/train/rank_times.h"
#include "worker/train/replica_check.h"
#include "worker/train/step_report.h"
#include "worker/train/step_rerun.h"
#include "worker/train/step_trace.h"
#include "worker/train/train_step.h"

namespace muster {
namespace {

// The loop of Megatron's pretrain() and train() (reference 12.1, 12.2); its steps stand in files of
// their own.
class Training {
 public:
  // `kept` has state and data.
  Training(const TrainingOptions& options, AttemptState& kept, const Restored& restored)
      : options_(options),
        kept_(kept),
        restored_(restored),
        state_(kept.state.get()),
        data_(*kept.data),
        agreement_(state_->parallel.world(), options.host, kept.directives, state_->snapshots,
                   options.device),
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
    kept_.reports = reports_;
    state_->epoch = options_.epoch;
    // Of a future that was discarded.
    std::deque<StepMessage>& recent = state_->recent_steps;
    while (!recent.empty() && recent.back().iteration > Iteration()) recent.pop_back();
  }

  absl::StatusOr<TrainingResult> Run() {
    const JobSpec& spec = state_->spec;
    RETURN_IF_ERROR(ReportAgain());
    if (!spec.training.skip_train && (Iteration() < state_->train_iters || MustRedoBoundary())) {
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
    ASSIGN_OR_RETURN(DataIterators data, data_.TrainIterators(*state_));
    rank_times_.Follow(data);
    // The first forward pass reads the parameters as they are here (reference 12.2).
    if (GathersBehindForward()) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/false));
    if (replica_check_interval().has_value()) RETURN_IF_ERROR(CheckReplicas(*state_));
    RETURN_IF_ERROR(AtStart());
    Phase("training");
    timers_.Start("interval-time");
    rank_times_.Start(options_.clock.Steady());
    std::optional<int64_t> num_microbatches;
    if (const auto ordered = state_->rerun->OrderedToLeave(); ordered.has_value())
      RETURN_IF_ERROR(LeaveRejected(*ordered));
    while (Iteration() < state_->train_iters && !left_early_) {
      const BatchSizes batch = state_->microbatches->Sizes(state_->progress.consumed_train_samples);
      if (num_microbatches.has_value() && batch.num_microbatches != *num_microbatches &&
          exit_options_.can_save) {
        RETURN_IF_ERROR(Save("the batch size grows"));
      }
      num_microbatches = batch.num_microbatches;
      if (IsToBeSkipped(Iteration() + 1)) {
        RETURN_IF_ERROR(SkipIteration(data));
        NoteBoundary();
        continue;
      }
      trace_.BeginStep(Iteration() + 1);
      ASSIGN_OR_RETURN(const TrainStepResult step,
                       TrainStep(*state_, data, agreement_, Wish(), timers_));
      if (step.leaves.has_value()) {
        RETURN_IF_ERROR(LeaveRejected(*step.leaves));
        break;
      }
      // From the first step on that was not skipped.
      if (!step.skipped && !GathersBehindForward() && ddp().gathers_behind_forward())
        ddp().EnableForwardPreHook();
      options_.host.NoteProgress(options_.epoch, Iteration());
      Report(step);
      ReportTimes();
      RETURN_IF_ERROR(trace_.EndStep());
      RETURN_IF_ERROR(AfterStep(step));
      NoteBoundary();
      Snapshot();
      if (AsksToReform(step) && !left_early_) RETURN_IF_ERROR(Yield());
    }
    RETURN_IF_ERROR(trace_.EndEarly());
    if (timers_.IsRunning("interval-time")) timers_.Stop("interval-time");
    if (GathersBehindForward()) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/true));
    return absl::OkStatus();
  }

  // The last boundary was not gone through by all when the attempt before ended.
  bool MustRedoBoundary() const { return restored_.redo_boundary; }

  // Before the first step: the evaluation at the start, or what is left of the boundary where the
  // attempt before ended.
  absl::Status AtStart() {
    if (MustRedoBoundary()) {
      RETURN_IF_ERROR(AfterStep(TrainStepResult(*state_->last_step)));
    } else if (kept_.boundary_done < Iteration() &&
               EvaluateAtStart(eval_options_, Iteration()).evaluate) {
      RETURN_IF_ERROR(EvaluateAndReport("valid", false));
    }
    NoteBoundary();
    Snapshot();
    return absl::OkStatus();
  }

  // After the boundary: what it changed is in it.
  void Snapshot() {
    Snapshotter* const snapshots = state_->snapshots;
    if (snapshots == nullptr) return;
    if (!left_early_ && snapshots->Due(Iteration())) {
      snapshots->Begin({.iteration = Iteration(),
                        .epoch = state_->committed_epoch,
                        .tensors = LiveTensors(*state_),
                        .texts = LiveTexts(*state_)});
    }
    for (const std::string& line : snapshots->TakeEvents()) Event("snapshot", line);
  }

  void NoteBoundary() {
    kept_.boundary_done = Iteration();
    kept_.consumed_valid_then = state_->progress.consumed_valid_samples;
  }

  static bool AsksToReform(const TrainStepResult& step) {
    return std::any_of(step.directives.begin(), step.directives.end(),
                       [](const Directive& d) { return d.kind == Directive::Kind::kReform; });
  }

  // Ends the attempt here, with all that is kept: the next epoch goes on from it. No rank takes its
  // groups down before all are at this place.
  absl::Status Yield() {
    RETURN_IF_ERROR(Annotate(state_->parallel.world().Barrier()->Wait(), "the end of the epoch"));
    left_early_ = result_.yielded = true;
    result_.reason = "the job goes on in another epoch";
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
          break;  // once all this is done
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

  // With a result that was rejected for good (reference 13.1): the step did not happen.
  absl::Status LeaveRejected(const RejectedStep& step) {
    if (step.held) return Yield();
    left_early_ = true;
    result_.exit_code = step.exit_code;
    result_.reason = step.reason;
    if (!step.checkpoint) return absl::OkStatus();
    if (exit_options_.can_save) return SaveForGood();
    result_.reason += "; checkpoint.save is not set, so that nothing is left to go on from";
    return absl::OkStatus();
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
    if (!IsLastStage(*state_)) return;
    StepMessage message = MakeStepMessage(*state_, step, elapsed, options_.epoch,
                                          agreement_.applied_through(), std::move(timers_ms));
    KeepStep(message);
    if (!reports_) return;
    std::map<std::string, double> losses = step.losses;
    losses.insert(step.side_losses.begin(), step.side_losses.end());
    const std::string line = log_.Add(message, losses, state_->train_iters);
    if (!line.empty()) {
      MUSTER_LOG(kInfo) << line;
    }
    options_.host.Send(std::move(message));
  }

  // For whoever reports after the next failure.
  void KeepStep(StepMessage message) {
    message.epoch = 0;
    message.elapsed_ms = message.tokens_per_s = message.tflops_per_device = 0;
    message.memory_bytes = 0;
    message.timers_ms.clear();
    std::deque<StepMessage>& recent = state_->recent_steps;
    recent.push_back(std::move(message));
    if (recent.size() > kReportsKept) recent.pop_front();
  }

  // The steps that attempts before have committed, when nobody may have heard of them.
  absl::Status ReportAgain() {
    if (!restored_.report_again) return absl::OkStatus();
    std::optional<double> params_norm;
    if (state_->spec.training.log_params_norm) {
      ASSIGN_OR_RETURN(params_norm, state_->optimizer->ParamsNorm());
    }
    if (!IsLastStage(*state_) || !state_->last_step.has_value()) return absl::OkStatus();
    TrainStepResult& step = *state_->last_step;
    step.params_norm = params_norm;
    std::deque<StepMessage>& recent = state_->recent_steps;
    while (!recent.empty() && recent.back().iteration >= Iteration()) recent.pop_back();
    KeepStep(MakeStepMessage(*state_, step, absl::ZeroDuration(), options_.epoch,
                             agreement_.applied_through(), {}));
    if (!reports_) return absl::OkStatus();
    for (StepMessage message : recent) {
      message.epoch = options_.epoch;
      if (message.iteration > options_.ledger_through) options_.host.Send(std::move(message));
    }
    return absl::OkStatus();
  }

  void ReportTimes() {
    const std::optional<RankTimesMessage> message =
        rank_times_.AfterStep(options_.clock.Steady(), state_->parallel.progress()->waited());
    if (!message.has_value()) return;
    RankTimesMessage times = *message;
    times.epoch = options_.epoch;
    times.iteration = Iteration();
    options_.host.Send(times);
  }

  absl::Status EvaluateAndReport(const std::string& split, bool final) {
    PauseInterval pause(*this, "evaluating");
    ASSIGN_OR_RETURN(const JobData::EvaluationPass pass, data_.Evaluation(*state_, split));
    const bool gathers = GathersBehindForward();
    if (gathers) RETURN_IF_ERROR(ddp().DisableForwardPreHook(/*param_sync=*/true));
    ASSIGN_OR_RETURN(auto losses, Evaluate(*state_, pass));
    if (gathers) {
      RETURN_IF_ERROR(
          Annotate(state_->parallel.world().Barrier()->Wait(), "the end of evaluation"));
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

  // Whatever is on its way to the coordinator when an agent dies.
  static constexpr size_t kReportsKept = 64;

  const TrainingOptions& options_;
  AttemptState& kept_;
  const Restored& restored_;
  JobState* const state_;
  const JobData& data_;
  StepAgreement agreement_;
  Timers timers_;
  StepTrace trace_;
  JobSaver saver_;
  TrainingLog log_;
  RankTimes rank_times_;
  EvalScheduleOptions eval_options_;
  const ExitOptions exit_options_;
  bool reports_ = false;  // this rank holds the reduced loss and speaks for the job
  bool left_early_ = false;
  TrainingResult result_;
};

}  // namespace

namespace {

// The rerun machine of this attempt, and the iterations that its tracker file says to skip.
// Collective.
absl::Status PrepareRerun(const TrainingOptions& options, JobState& state) {
  StepRerunOptions rerun{
      .spec = state.spec,
      .job_id = options.job_id,
      .rank = state.parallel.rank(),
      .place = options.place,
      .event = [&host = options.host, epoch = options.epoch](const std::string& text) {
        host.Send(EventMessage{.epoch = epoch, .kind = "rerun", .text = text});
      }};
  if (state.spec.rerun.rerun_elsewhere) {
    rerun.report = [&host = options.host, epoch = options.epoch](int64_t iteration,
                                                                 const std::string& json) {
      host.Send(ExamineMessage{.epoch = epoch, .iteration = iteration, .json = json});
    };
    rerun.order_json = options.examine_json;
  }
  ASSIGN_OR_RETURN(state.rerun, StepRerun::Create(rerun, state.rerun.get()));
  ASSIGN_OR_RETURN(const std::vector<int64_t> more,
                   StepRerun::IterationsToSkip(state.spec, state.parallel.world(), options.device));
  std::vector<int64_t>& skip = state.spec.training.iterations_to_skip;
  for (const int64_t iteration : more) {
    if (std::find(skip.begin(), skip.end(), iteration) == skip.end()) skip.push_back(iteration);
  }
  return absl::OkStatus();
}

// For whoever asks what this rank is doing.
std::vector<OpArrival> ArrivalsOf(const OpProgress& progress) {
  std::vector<OpArrival> arrivals;
  for (OpProgress::Newest& newest : progress.NewestOperations()) {
    if (newest.ranks.size() == 1) continue;
    arrivals.push_back({.group = std::move(newest.group),
                        .ranks = std::move(newest.ranks),
                        .sequence = newest.sequence,
                        .operation = std::move(newest.operation),
                        .done = newest.done,
                        .age_ms = absl::ToDoubleMilliseconds(newest.age)});
  }
  return arrivals;
}

const char* NameOf(RestoreDecision::Source source) {
  switch (source) {
    case RestoreDecision::Source::kBeginning:
      return "beginning";
    case RestoreDecision::Source::kCheckpoint:
      return "checkpoint";
    case RestoreDecision::Source::kSnapshot:
      return "snapshot";
    case RestoreDecision::Source::kLive:
      return "live";
  }
  return "";
}

absl::StatusOr<TrainingResult> RestoreAndTrain(const TrainingOptions& options, AttemptState& kept) {
  auto phase = [&](const char* name) {
    options.host.Send(PhaseMessage{.epoch = options.epoch, .phase = name, .detail = ""});
  };
  const absl::Duration start = options.clock.Steady();
  const bool helps = options.world->rank() >= options.spec.resources.world_size;
  phase(helps ? "helping" : "restoring");
  ASSIGN_OR_RETURN(
      const Restored restored,
      RestoreJob({.spec = options.spec,
                  .members = options.world,
                  .host = options.host,
                  .providers = options.providers,
                  .epoch = options.epoch,
                  .directives_through = options.directives_through,
                  .ledger_through = options.ledger_through,
                  .device = options.device,
                  .kept = kept,
                  .prepare = [&](JobState& state) { return PrepareRerun(options, state); },
                  .buddy = options.buddy}));
  if (restored.world == nullptr) {
    kept = AttemptState();
    return TrainingResult{.reason = "gave its state away", .helped = true};
  }
  JobState& state = *kept.state;
  options.host.WatchOperations(
      [progress = state.parallel.progress()] { return ArrivalsOf(*progress); });
  if (!kept.data.has_value()) phase("data");
  ASSIGN_OR_RETURN(kept.data, JobData::Build(state, options.providers, kept.data));
  const bool is_recovery = options.epoch > 1 || options.ledger_through > 0;
  if (state.parallel.rank() == 0 && is_recovery) {
    options.host.Send(
        RestoredMessage{.epoch = options.epoch,
                        .iteration = state.progress.iteration,
                        .source = NameOf(restored.decision.source),
                        .text = restored.decision.reason,
                        .form_ms = absl::ToDoubleMilliseconds(options.form_time),
                        .state_ms = absl::ToDoubleMilliseconds(options.clock.Steady() - start),
                        .bytes = restored.bytes_moved});
  }
  Training training(options, kept, restored);
  return training.Run();
}

}  // namespace

absl::StatusOr<TrainingResult> RunTraining(const TrainingOptions& options) {
  // Tensor code throws. Whoever runs ranks wants a status: it has peers to free.
  AttemptState nothing;
  try {
    return RestoreAndTrain(options, options.kept == nullptr ? nothing : *options.kept);
  } catch (const CollectiveError& error) {
    return error.status;
  } catch (const c10::AcceleratorError&) {
    throw;  // the device: whoever owns the process must end it
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace muster
