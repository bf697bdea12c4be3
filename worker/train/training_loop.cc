#include "worker/train/training_loop.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "worker/train/boundary_requests.h"
#include "worker/train/job_data.h"
#include "worker/train/live_state.h"
#include "worker/train/rank_times.h"
#include "worker/train/replica_check.h"
#include "worker/train/step_reporter.h"
#include "worker/train/step_rerun.h"
#include "worker/train/step_trace.h"
#include "worker/train/train_step.h"
#include "worker/train/training_pauses.h"

namespace muster {
namespace {

// The loop of Megatron's pretrain() and train() (reference 12.1, 12.2); its steps stand in files of
// their own.
class TrainingLoop {
 public:
  // `kept` has state and data.
  TrainingLoop(const TrainingOptions& options, AttemptState& kept, const Restored& restored)
      : options_(options),
        kept_(kept),
        restored_(restored),
        state_(kept.state.get()),
        data_(*kept.data),
        agreement_(state_->parallel.world(), options.host, kept.directives, state_->snapshots,
                   options.device),
        timers_(&options.clock),
        trace_({.state = *state_, .timers = timers_, .host = options.host, .epoch = options.epoch}),
        reporter_(*state_, options.host, options.epoch),
        pauses_({.state = *state_,
                 .data = data_,
                 .timers = timers_,
                 .reporter = reporter_,
                 .host = options.host,
                 .clock = options.clock,
                 .epoch = options.epoch}),
        eval_options_(EvalScheduleOptionsOf(state_->spec)),
        exit_options_(ExitOptionsOf(state_->spec)) {
    eval_options_.do_valid = data_.has_valid();
    eval_options_.do_test = data_.has_test();
    kept_.reports = reporter_.speaks();
    state_->epoch = options_.epoch;
  }

  absl::StatusOr<TrainingResult> Run() {
    const JobSpec& spec = state_->spec;
    if (restored_.report_again) {
      RETURN_IF_ERROR(reporter_.ReportAgain(agreement_.applied_through(), options_.ledger_through));
    }
    if (!spec.training.skip_train && (Iteration() < state_->train_iters || MustRedoBoundary())) {
      RETURN_IF_ERROR(TrainUntilDone());
      if (held_) RETURN_IF_ERROR(Hold());
      if (left_early_) return Result();
    }
    if (!spec.training.skip_train && SaveAfterTraining(exit_options_, Iteration()))
      RETURN_IF_ERROR(SaveForGood());
    const FinalEvaluations final = EvaluateAtEnd(eval_options_, left_early_);
    if (final.valid) RETURN_IF_ERROR(pauses_.Evaluate("valid", /*final=*/true));
    if (final.test) RETURN_IF_ERROR(pauses_.Evaluate("test", /*final=*/true));
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
    options_.host.Send(PhaseMessage{.epoch = options_.epoch, .phase = "training", .detail = ""});
    timers_.Start("interval-time");
    rank_times_.Start(options_.clock.Steady());
    std::optional<int64_t> num_microbatches;
    while (Iteration() < state_->train_iters && !left_early_) {
      const BatchSizes batch = state_->microbatches->Sizes(state_->progress.consumed_train_samples);
      if (num_microbatches.has_value() && batch.num_microbatches != *num_microbatches &&
          exit_options_.can_save) {
        RETURN_IF_ERROR(pauses_.Save("the batch size grows"));
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
      reporter_.Report(step, agreement_.applied_through(), timers_);
      ReportTimes();
      RETURN_IF_ERROR(trace_.EndStep());
      RETURN_IF_ERROR(AfterStep(step));
      if (left_early_) break;  // whoever goes on from here leaves again
      NoteBoundary();
      Snapshot();
      if (RequestsOf(step).reform) RETURN_IF_ERROR(Yield());
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
      if (left_early_) return absl::OkStatus();
    } else if (kept_.boundary_done < Iteration() &&
               EvaluateAtStart(eval_options_, Iteration()).evaluate) {
      RETURN_IF_ERROR(pauses_.Evaluate("valid", false));
    }
    NoteBoundary();
    Snapshot();
    return absl::OkStatus();
  }

  // After the boundary: what it changed is in it.
  void Snapshot() {
    Snapshotter* const snapshots = state_->snapshots;
    if (snapshots == nullptr) return;
    if (snapshots->Due(Iteration())) {
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
    const BoundaryRequests requests = RequestsOf(step);
    ExitInputs inputs = requests.exit;
    inputs.iteration = Iteration();
    if (EvaluateAfterStep(eval_options_, Iteration(), requests.evaluation).evaluate) {
      RETURN_IF_ERROR(pauses_.Evaluate("valid", /*final=*/false));
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
      RETURN_IF_ERROR(pauses_.Save(decision.reason));
    } else if (pauses_.SaveIsDueAgain()) {
      RETURN_IF_ERROR(pauses_.Save("again, after a failed save"));
    }
    return requests.trace.has_value() ? trace_.Begin(*requests.trace) : absl::OkStatus();
  }

  // With a result that was rejected for good (reference 13.1): the step did not happen.
  absl::Status LeaveRejected(const RejectedStep& step) {
    if (step.held) {
      held_ = true;
      return Yield();
    }
    left_early_ = true;
    result_.exit_code = step.exit_code;
    result_.reason = step.reason;
    if (!step.checkpoint) return absl::OkStatus();
    if (exit_options_.can_save) return SaveForGood();
    result_.reason += "; checkpoint.save is not set, so that nothing is left to go on from";
    return absl::OkStatus();
  }

  // All ranks hold a step; the coordinator knows what they saw, and decides: either by a directive
  // to leave with this step, or by another epoch, and then this attempt is over.
  absl::Status Hold() {
    options_.host.Send(PhaseMessage{.epoch = options_.epoch, .phase = "yielded", .detail = ""});
    result_.told = true;
    std::vector<Directive> come = kept_.directives.held();
    do {
      for (const Directive& directive : come) {
        const std::optional<RejectedStep> leaves = state_->rerun->LeavesBy(directive);
        if (!leaves.has_value()) continue;
        result_.yielded = false;
        result_.reason.clear();
        return LeaveRejected(*leaves);
      }
      come = options_.host.WaitForDirectives(options_.epoch);
    } while (!come.empty());
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

  void ReportTimes() {
    std::optional<RankTimesMessage> times =
        rank_times_.AfterStep(options_.clock.Steady(), state_->parallel.progress()->waited());
    if (!times.has_value()) return;
    times->epoch = options_.epoch;
    times->iteration = Iteration();
    options_.host.Send(*times);
  }

  // A run that cannot save at its end says so with its exit code.
  absl::Status SaveForGood() {
    ASSIGN_OR_RETURN(
        const std::optional<std::string> failure,
        pauses_.SaveForGood(result_.reason.empty() ? "the end of training" : result_.reason));
    if (!failure.has_value()) return absl::OkStatus();
    result_.exit_code = 1;
    result_.reason = absl::StrCat(result_.reason.empty() ? "trained to the end" : result_.reason,
                                  ", but the last checkpoint could not be saved: ", *failure);
    return absl::OkStatus();
  }

  void Event(const char* kind, const std::string& text) {
    options_.host.Send(EventMessage{.epoch = options_.epoch, .kind = kind, .text = text});
  }

  const TrainingOptions& options_;
  AttemptState& kept_;
  const Restored& restored_;
  JobState* const state_;
  const JobData& data_;
  StepAgreement agreement_;
  Timers timers_;
  StepTrace trace_;
  StepReporter reporter_;
  TrainingPauses pauses_;
  RankTimes rank_times_;
  EvalScheduleOptions eval_options_;
  const ExitOptions exit_options_;
  bool left_early_ = false;
  bool held_ = false;  // a step was rejected, and the coordinator decides about it
  TrainingResult result_;
};

}  // namespace

absl::StatusOr<TrainingResult> RunTrainingLoop(const TrainingOptions& options, AttemptState& kept,
                                               const Restored& restored) {
  return TrainingLoop(options, kept, restored).Run();
}

}  // namespace muster
