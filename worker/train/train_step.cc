#include "worker/train/train_step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/spec/per_layer.h"
#include "worker/parallel/finalize_grads.h"
#include "worker/snapshot/snapshotter.h"
#include "worker/train/fingerprints.h"
#include "worker/train/run_passes.h"
#include "worker/train/step_rerun.h"

namespace muster {
namespace {

// MoE layers of the job whose side losses are logged; 0: they have none. The same on every rank.
int64_t LayersWithSideLosses(const ModelSpec& model) {
  const auto weighs = [](double coeff) { return coeff != 0; };
  if (!std::any_of(model.moe_aux_loss_coeff.begin(), model.moe_aux_loss_coeff.end(), weighs) &&
      !weighs(model.moe_z_loss_coeff.value_or(0))) {
    return 0;
  }
  const std::vector<bool> layers = ExpertLayers(model);
  return std::count(layers.begin(), layers.end(), true);
}

// Passes, final gradients, norms, reduced losses: all of the step's communication but the
// agreement and the gathers. Then this rank's results are validated: INTERNAL when one is refused
// for good, in `validated`.
absl::Status PrepareTrainStep(JobState& state, const DataIterators& data, OpenStep& step,
                              Timers& timers, absl::Status* validated) {
  TrainStepResult& out = step.result;
  state.ddp->ZeroGradBuffer();
  state.experts->BeginStep();
  ForwardBackwardResult passes;
  {
    Timers::Scope timer(timers, "forward-backward");
    absl::StatusOr<ForwardBackwardResult> result =
        RunPasses(state, data,
                  {.num_microbatches = out.batch.num_microbatches,
                   .micro_batch_size = state.spec.training.micro_batch_size,
                   .loss_scale = out.loss_scale});
    if (!result.ok()) {
      return Annotate(result.status(), absl::StrCat("iteration ", state.progress.iteration + 1));
    }
    passes = *std::move(result);
  }
  {
    Timers::Scope timer(timers, "all-grads-sync");
    std::optional<at::Tensor> num_tokens;
    if (state.spec.training.calculate_per_token_loss) num_tokens = passes.num_tokens;
    RETURN_IF_ERROR(
        FinalizeModelGrads(*state.ddp, state.parallel, num_tokens, state.experts.get()));
  }
  {
    Timers::Scope timer(timers, "optimizer");
    ASSIGN_OR_RETURN(step.optimizer, state.optimizer->PrepareStep(out.loss_scale));
  }
  Timers::Scope timer(timers, "loss-reduction");
  *validated = state.rerun->Validate(passes.passes, *state.ddp);
  if (!validated->ok() && !absl::IsInternal(*validated)) return *validated;
  ASSIGN_OR_RETURN(out.losses, ReduceReported(passes.reported, state.parallel.Group("dp_cp")));
  if (const int64_t moe_layers = LayersWithSideLosses(state.spec.model); moe_layers > 0) {
    ASSIGN_OR_RETURN(out.side_losses,
                     state.experts->ReduceSideLosses(state.parallel, state.device,
                                                     out.batch.num_microbatches, moe_layers));
  }
  return absl::OkStatus();
}

// The agreement that commits the step, unless some rank says that something is wrong.
absl::StatusOr<AgreedStep> AgreeOn(OpenStep& step, StepAgreement& agreement, bool wrong,
                                   ExitWish wish, Timers& timers) {
  Timers::Scope timer(timers, "agreement");
  step.prepared = !wrong;
  ASSIGN_OR_RETURN(AgreedStep agreed,
                   agreement.Agree({.found_inf = step.optimizer.found_inf,
                                    .norm_too_large = step.optimizer.norm_too_large,
                                    .something_wrong = wrong,
                                    .exit_wish = wish}));
  if (agreed.decision.something_wrong) step.prepared = false;
  return agreed;
}

}  // namespace

namespace {

// The step is neither committed nor run again here. Collective.
absl::StatusOr<TrainStepResult> LeaveRejected(JobState& state, const RerunExit& exit) {
  StepRerun& rerun = *state.rerun;
  TrainStepResult out;
  out.leaves = RejectedStep{.checkpoint = exit.checkpoint, .exit_code = exit.code};
  ASSIGN_OR_RETURN(out.leaves->reason, rerun.Describe(state.parallel.world(), state.device));
  // Bad in two ways in one place: no other hardware is needed to know that.
  out.leaves->held = rerun.elsewhere() && rerun.machine().state() != RerunState::kRerunningInPlace;
  if (out.leaves->held) {
    rerun.Report(rerun.machine().state() == RerunState::kWillRerunFromCheckpoint
                     ? ExamineReport::Stage::kInPlace
                     : ExamineReport::Stage::kElsewhere);
  }
  DropOpenStep(state);
  return out;
}

}  // namespace

absl::StatusOr<TrainStepResult> TrainStep(JobState& state, const DataIterators& data,
                                          StepAgreement& agreement, ExitWish wish, Timers& timers) {
  OpenStep& step =
      state.open_step.emplace(OpenStep{.rng_at_start = RngSnapshot(state.rng.Generators())});
  ASSIGN_OR_RETURN(step.result.batch,
                   state.microbatches->CheckedSizes(state.progress.consumed_train_samples));
  step.result.loss_scale = state.loss_scaler->scale();

  StepRerun& rerun = *state.rerun;
  RerunMachine& machine = rerun.machine();
  Communicator& world = state.parallel.world();
  std::optional<ReplayedData> replayed;
  if (rerun.enabled()) replayed.emplace(data);
  machine.SetCompleted(state.progress.iteration);
  RerunFlags sum;
  AgreedStep agreed;
  agreed.decision.something_wrong = true;
  std::vector<Directive> directives;
  while (true) {
    ASSIGN_OR_RETURN(const RunDecision decision, machine.ShouldRun(sum));
    if (decision.restore) {
      step.rng_at_start.Restore();
      replayed->Rewind();
    }
    if (decision.report_stats) RETURN_IF_ERROR(rerun.ReportStats(world, state.device));
    if (!decision.run) break;
    std::optional<ListenToGroups> listens;
    if (rerun.fingerprints_wanted()) listens.emplace(state.parallel, rerun.fingerprints());
    absl::Status validated;
    RETURN_IF_ERROR(PrepareTrainStep(state, replayed.has_value() ? replayed->iterators() : data,
                                     step, timers, &validated));
    listens.reset();
    if (machine.state() == RerunState::kInitialRun) {
      // Where all is well this is the step's only word about it.
      const bool wrong = machine.flags().rerun != 0 || !validated.ok();
      ASSIGN_OR_RETURN(agreed, AgreeOn(step, agreement, wrong, wish, timers));
      directives = agreed.directives;
      sum = {.rerun = agreed.decision.something_wrong ? 1 : 0};
      if (sum.rerun != 0 && !rerun.enabled()) return rerun.Refusal(validated, world, state.device);
    } else if (machine.needs_flags()) {
      ASSIGN_OR_RETURN(sum, rerun.SumFlags(world, state.device));
    }
  }
  if (const RerunExit exit = machine.ExitOf(); exit.exit) {
    if (replayed.has_value()) rerun.NoteReplays(replayed->states());
    agreement.TakeBack(directives);
    return LeaveRejected(state, exit);
  }
  if (agreed.decision.something_wrong) {
    // Accepted after its rerun.
    if (rerun.elsewhere() && machine.failed_call().has_value())
      rerun.Report(ExamineReport::Stage::kTransient);
    rerun.fingerprints().Take();
    ASSIGN_OR_RETURN(agreed, AgreeOn(step, agreement, /*wrong=*/false, wish, timers));
    directives.insert(directives.end(), agreed.directives.begin(), agreed.directives.end());
  }
  Timers::Scope timer(timers, "optimizer");
  CommitOpenStep(state, agreed.vector);
  state.last_step->directives = std::move(directives);
  RETURN_IF_ERROR(GatherAfterCommit(state));
  return *state.last_step;
}

void CommitOpenStep(JobState& state, const AgreementVector& agreed) {
  OpenStep& step = *state.open_step;
  TrainStepResult& out = step.result;
  if (state.snapshots != nullptr) state.snapshots->AwaitCopied();
  step.committing = true;
  out.decision = FromReduced(agreed);
  step.optimizer.found_inf = out.decision.found_inf;
  step.optimizer.norm_too_large = out.decision.norm_too_large;
  state.loss_scaler->Update(step.optimizer.found_inf);
  // Moved by skipped steps too, which have routed tokens all the same.
  state.experts->CommitBiases(state.spec.model.moe_router_bias_update_rate);
  const StepResult update = state.optimizer->CommitStep(step.optimizer);
  out.skipped = !update.success;
  out.grad_norm = update.grad_norm;
  out.num_zeros = update.num_zeros;
  const int64_t samples = out.batch.num_microbatches * state.spec.training.micro_batch_size *
                          state.sizes.data_parallel_size;
  if (update.success) {
    state.lr_schedule->Step(samples);
    ApplySchedule(*state.lr_schedule, *state.optimizer);
  }
  Progress& progress = state.progress;
  ++progress.iteration;
  progress.consumed_train_samples += samples;
  progress.skipped_train_samples += out.batch.global_batch_size - out.batch.running_batch_size;
  progress.floating_point_operations_so_far +=
      FlopsOfBatch(FlopsModelOf(state.spec, state.sizes), out.batch.running_batch_size,
                   state.spec.model.seq_length);
  state.agreed = {.vector = agreed, .iteration = progress.iteration, .epoch = state.epoch};
  state.committed_epoch = state.epoch;
  state.consumed_valid_at_commit = progress.consumed_valid_samples;
  state.last_step = std::move(out);
  state.open_step.reset();
}

void DropOpenStep(JobState& state) {
  if (!state.open_step.has_value()) return;
  state.open_step->rng_at_start.Restore();
  state.open_step.reset();
}

absl::Status GatherAfterCommit(JobState& state) {
  if (!state.last_step.has_value() || !state.last_step->skipped) {
    if (!state.ddp->gathers_behind_forward())
      RETURN_IF_ERROR(Annotate(state.ddp->SyncParams(), "gathering parameters"));
    RETURN_IF_ERROR(Annotate(state.optimizer->GatherUpdatedParams(), "gathering parameters"));
  }
  if (state.last_step.has_value() && state.spec.training.log_params_norm) {
    ASSIGN_OR_RETURN(state.last_step->params_norm, state.optimizer->ParamsNorm());
  }
  return absl::OkStatus();
}

}  // namespace muster
