#include "worker/train/train_step.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/spec/per_layer.h"
#include "worker/parallel/finalize_grads.h"
#include "worker/train/run_passes.h"

namespace muster {
namespace {

struct Rejection {
  enum class Of { kNothing, kLoss, kGradient };
  Of of = Of::kNothing;
  std::string what;
};

// This rank's losses and gradients that are not finite. fp16 with a dynamic scale overflows by
// design: there the scaler handles it.
Rejection RejectedResult(const JobState& state, const ForwardBackwardResult& result) {
  if (!state.spec.rerun.check_for_nan_in_loss || state.spec.rerun.mode == "disabled") return {};
  if (state.spec.training.fp16 && !state.spec.training.loss_scale.has_value()) return {};
  for (const auto& [key, tensor] : result.reported) {
    const double value = tensor.flatten()[0].item<double>();
    if (!std::isfinite(value)) return {Rejection::Of::kLoss, absl::StrCat(key, " is ", value)};
  }
  if (absl::Status norms = state.ddp->CheckBucketNorms(); !norms.ok())
    return {Rejection::Of::kGradient, std::string(norms.message())};
  return {};
}

// The error of a step that was rejected, the same iteration and rank on every rank: the lowest one
// that rejects its loss, else its gradients (a loss spoils those of the stages before it, too).
// Collective.
absl::Status RejectedStep(const JobState& state, const Rejection& mine) {
  Communicator& world = state.parallel.world();
  const int64_t size = world.size();
  int64_t order = 2 * size;
  if (mine.of == Rejection::Of::kLoss) order = world.rank();
  if (mine.of == Rejection::Of::kGradient) order = size + world.rank();
  at::Tensor first =
      at::full({1}, order, at::TensorOptions().dtype(at::kLong).device(state.device));
  RETURN_IF_ERROR(Annotate(world.AllReduce(first, ReduceOp::kMin)->Wait(), "naming the rank"));
  const int64_t rank = first.item<int64_t>() % size;
  return absl::InternalError(
      absl::StrCat("iteration ", state.progress.iteration + 1,
                   ": result validation failed: ", rank == world.rank() ? mine.what : "rejected",
                   " on rank ", rank, "; rerun.check_for_nan_in_loss=false lets such steps pass"));
}

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
// agreement and the gathers. Returns what this rank rejects.
absl::StatusOr<Rejection> PrepareTrainStep(JobState& state, const DataIterators& data,
                                           OpenStep& step, Timers& timers) {
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
  Rejection rejected = RejectedResult(state, passes);
  ASSIGN_OR_RETURN(out.losses, ReduceReported(passes.reported, state.parallel.Group("dp_cp")));
  if (const int64_t moe_layers = LayersWithSideLosses(state.spec.model); moe_layers > 0) {
    ASSIGN_OR_RETURN(out.side_losses,
                     state.experts->ReduceSideLosses(state.parallel, state.device,
                                                     out.batch.num_microbatches, moe_layers));
  }
  return rejected;
}

}  // namespace

absl::StatusOr<TrainStepResult> TrainStep(JobState& state, const DataIterators& data,
                                          StepAgreement& agreement, ExitWish wish, Timers& timers) {
  OpenStep& step =
      state.open_step.emplace(OpenStep{.rng_at_start = RngSnapshot(state.rng.Generators())});
  ASSIGN_OR_RETURN(step.result.batch,
                   state.microbatches->CheckedSizes(state.progress.consumed_train_samples));
  step.result.loss_scale = state.loss_scaler->scale();
  ASSIGN_OR_RETURN(const Rejection rejected, PrepareTrainStep(state, data, step, timers));
  AgreedStep agreed;
  {
    Timers::Scope timer(timers, "agreement");
    const bool wrong = rejected.of != Rejection::Of::kNothing;
    step.prepared = !wrong;
    ASSIGN_OR_RETURN(agreed, agreement.Agree({.found_inf = step.optimizer.found_inf,
                                              .norm_too_large = step.optimizer.norm_too_large,
                                              .something_wrong = wrong,
                                              .exit_wish = wish}));
    if (agreed.decision.something_wrong) {
      step.prepared = false;
      return RejectedStep(state, rejected);
    }
  }
  Timers::Scope timer(timers, "optimizer");
  CommitOpenStep(state, agreed.vector);
  state.last_step->directives = std::move(agreed.directives);
  RETURN_IF_ERROR(GatherAfterCommit(state));
  return *state.last_step;
}

void CommitOpenStep(JobState& state, const AgreementVector& agreed) {
  OpenStep& step = *state.open_step;
  TrainStepResult& out = step.result;
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
  state.agreed = {.vector = agreed, .iteration = progress.iteration};
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
