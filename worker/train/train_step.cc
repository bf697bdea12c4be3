#include "worker/train/train_step.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/finalize_grads.h"
#include "worker/train/forward_backward.h"

namespace muster {
namespace {

// This rank's losses and gradients that are not finite; empty when all is well. fp16 with a dynamic
// scale overflows by design: there the scaler handles it.
std::string RejectedResult(const JobState& state, const ForwardBackwardResult& result) {
  if (!state.spec.rerun.check_for_nan_in_loss || state.spec.rerun.mode == "disabled") return "";
  for (const auto& [key, tensor] : result.reported) {
    const double value = tensor.flatten()[0].item<double>();
    if (!std::isfinite(value))
      return absl::StrCat(key, " is ", value, " on rank ", state.parallel.rank());
  }
  if (absl::Status norms = state.ddp->CheckBucketNorms(); !norms.ok()) {
    return absl::StrCat(std::string(norms.message()), " on rank ", state.parallel.rank());
  }
  return "";
}

// The error of a step that was rejected, the same iteration and rank on every rank: the lowest one
// that rejects names itself to the others. Collective.
absl::Status RejectedStep(const JobState& state, const std::string& rejected) {
  Communicator& world = state.parallel.world();
  const int mine = rejected.empty() ? world.size() : world.rank();
  at::Tensor first = at::full({1}, mine, at::TensorOptions().dtype(at::kLong).device(state.device));
  RETURN_IF_ERROR(Annotate(world.AllReduce(first, ReduceOp::kMin)->Wait(), "naming the rank"));
  return absl::InternalError(absl::StrCat(
      "iteration ", state.progress.iteration + 1, ": result validation failed: ",
      rejected.empty() ? absl::StrCat("rejected on rank ", first.item<int64_t>()) : rejected,
      "; rerun.check_for_nan_in_loss=false lets such steps pass"));
}

}  // namespace

absl::StatusOr<TrainStepResult> TrainStep(JobState& state, DataIterator& data,
                                          StepAgreement& agreement, ExitWish wish, Timers& timers) {
  TrainStepResult out;
  ASSIGN_OR_RETURN(out.batch,
                   state.microbatches->CheckedSizes(state.progress.consumed_train_samples));
  const int num_microbatches = static_cast<int>(out.batch.num_microbatches);
  out.loss_scale = state.loss_scaler->scale();

  ASSIGN_OR_RETURN(const RankSchedule schedule,
                   MakeRankSchedule({.num_microbatches = num_microbatches}, 0));
  state.ddp->ZeroGradBuffer();
  ForwardBackwardResult passes;
  {
    Timers::Scope timer(timers, "forward-backward");
    absl::StatusOr<ForwardBackwardResult> result = RunForwardBackward(
        {.schedule = schedule,
         .num_microbatches = num_microbatches,
         .forward_step = *state.forward_step,
         .chunks = {state.chunks[0].get()},
         .data = {&data},
         .ddp = state.ddp.get(),
         .calculate_per_token_loss = state.spec.training.calculate_per_token_loss,
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
    RETURN_IF_ERROR(FinalizeModelGrads(*state.ddp, state.parallel, num_tokens));
  }
  PreparedStep prepared;
  {
    Timers::Scope timer(timers, "optimizer");
    ASSIGN_OR_RETURN(prepared, state.optimizer->PrepareStep(out.loss_scale));
  }
  {
    Timers::Scope timer(timers, "agreement");
    const std::string rejected = RejectedResult(state, passes);
    ASSIGN_OR_RETURN(AgreedStep agreed,
                     agreement.Agree(prepared.found_inf, !rejected.empty(), wish));
    if (agreed.decision.something_wrong) {
      return RejectedStep(state, rejected);
    }
    out.decision = agreed.decision;
    out.directives = std::move(agreed.directives);
    prepared.found_inf = agreed.decision.found_inf;
  }
  {
    Timers::Scope timer(timers, "optimizer");
    state.loss_scaler->Update(prepared.found_inf);
    const StepResult step = state.optimizer->CommitStep(prepared);
    out.skipped = !step.success;
    out.grad_norm = step.grad_norm;
    out.num_zeros = step.num_zeros;
    const int64_t samples = out.batch.num_microbatches * state.spec.training.micro_batch_size *
                            state.sizes.data_parallel_size;
    if (step.success) {
      state.lr_schedule->Step(samples);
      ApplySchedule(*state.lr_schedule, *state.optimizer);
    }
    state.progress.consumed_train_samples += samples;
    state.progress.skipped_train_samples +=
        out.batch.global_batch_size - out.batch.running_batch_size;
  }
  Timers::Scope timer(timers, "loss-reduction");
  ASSIGN_OR_RETURN(out.losses, ReduceReported(passes.reported, state.parallel.Group("dp_cp")));
  return out;
}

}  // namespace muster
