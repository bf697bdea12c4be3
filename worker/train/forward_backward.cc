#include "worker/train/forward_backward.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

// The scalar that is differentiated for one microbatch (reference 5.1).
at::Tensor MicrobatchObjective(const ForwardBackwardOptions& options, const LossResult& loss) {
  at::Tensor objective = loss.loss_sum;
  if (!options.calculate_per_token_loss) {
    if (loss.num_tokens.defined()) {
      objective = objective / loss.num_tokens.clamp_min(1).to(objective.scalar_type());
    }
    objective = objective / static_cast<double>(options.num_microbatches);
  }
  if (options.loss_scale != 1) objective = objective * options.loss_scale;
  return objective;
}

class Executor {
 public:
  explicit Executor(const ForwardBackwardOptions& options) : options_(options) {}

  absl::Status Run() {
    for (const ScheduleOp& op : options_.schedule) {
      switch (op.kind) {
        case ScheduleOp::Kind::kForward:
          RETURN_IF_ERROR(Forward(op));
          break;
        case ScheduleOp::Kind::kBackward:
          Backward(op);
          break;
        case ScheduleOp::Kind::kGradSync:
          RETURN_IF_ERROR(options_.ddp->StartGradSync(op.chunk));
          break;
        case ScheduleOp::Kind::kParamSync:
        case ScheduleOp::Kind::kSendForward:
        case ScheduleOp::Kind::kRecvForward:
        case ScheduleOp::Kind::kSendBackward:
        case ScheduleOp::Kind::kRecvBackward:
          return absl::UnimplementedError(absl::StrCat(
              "the schedule holds a pipeline stage's operation: ", ScheduleOpName(op.kind)));
      }
    }
    for (auto& [key, tensor] : result_.reported) {
      if (tensor.numel() == 1) tensor.div_(static_cast<double>(options_.num_microbatches));
    }
    if (!result_.num_tokens.defined()) result_.num_tokens = at::zeros({}, at::kLong);
    return absl::OkStatus();
  }

  ForwardBackwardResult TakeResult() { return std::move(result_); }

 private:
  absl::Status Forward(const ScheduleOp& op) {
    c10::AutoGradMode grad(options_.ddp != nullptr);
    ASSIGN_OR_RETURN(ForwardStepResult step,
                     options_.forward_step.Run(*options_.data[op.chunk], *options_.chunks[op.chunk],
                                               at::Tensor()));
    const LossResult loss = step.loss_function(step.output);
    if (loss.num_tokens.defined()) {
      at::Tensor& total = result_.num_tokens;  // on the loss's device
      total = total.defined() ? total.add_(loss.num_tokens) : loss.num_tokens.clone();
    }
    for (const auto& [key, value] : loss.reported) {
      if (value.numel() != 1 && value.numel() != 2) {
        return absl::InvalidArgumentError(absl::StrCat("the loss function reports ", value.numel(),
                                                       " elements for '", key,
                                                       "': [sum, count] or [value] is expected"));
      }
      at::Tensor& sum = result_.reported[key];
      // fp64 keeps the sum over microbatches independent of their order.
      const at::Tensor addend = value.detach().reshape({-1}).to(at::kDouble);
      sum = sum.defined() ? sum.add_(addend) : addend.clone();
    }
    if (options_.ddp != nullptr) objectives_[op.microbatch] = MicrobatchObjective(options_, loss);
    return absl::OkStatus();
  }

  void Backward(const ScheduleOp& op) {
    // All microbatches but the last only accumulate; the one outside no_sync lets the reductions
    // start.
    std::optional<DistributedDataParallel::NoSync> no_sync;
    if (!op.sync) no_sync.emplace(*options_.ddp);
    torch::autograd::backward({std::exchange(objectives_[op.microbatch], {})}, {});
  }

  const ForwardBackwardOptions& options_;
  std::map<int, at::Tensor> objectives_;  // of microbatches whose backward pass is due
  ForwardBackwardResult result_;
};

}  // namespace

absl::StatusOr<ForwardBackwardResult> RunForwardBackward(const ForwardBackwardOptions& options) {
  Executor executor(options);
  RETURN_IF_ERROR(executor.Run());
  return executor.TakeResult();
}

absl::StatusOr<std::map<std::string, double>> ReduceReported(
    const std::map<std::string, at::Tensor>& reported, Communicator& dp_cp) {
  // One reduction for all keys; every rank reports the same ones.
  std::vector<at::Tensor> pairs;
  for (const auto& [key, tensor] : reported) {
    if (tensor.numel() == 2) pairs.push_back(tensor);
  }
  at::Tensor sums;
  if (!pairs.empty()) {
    sums = at::stack(pairs);  // (keys, 2) fp64
    RETURN_IF_ERROR(dp_cp.AllReduce(sums, ReduceOp::kSum)->Wait());
  }
  std::map<std::string, double> out;
  int row = 0;
  for (const auto& [key, tensor] : reported) {
    if (tensor.numel() == 1) {
      out[key] = tensor.item<double>();
      continue;
    }
    out[key] = sums[row][0].item<double>() / sums[row][1].item<double>();
    ++row;
  }
  return out;
}

}  // namespace muster
