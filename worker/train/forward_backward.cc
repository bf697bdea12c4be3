#include "worker/train/forward_backward.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/schedule_execution.h"
#include "worker/train/pipeline_exchange.h"

namespace muster {
namespace {

// The scalar that is differentiated for one microbatch (reference 5.1).
at::Tensor MicrobatchObjective(const ForwardBackwardOptions& options, const LossResult& loss) {
  at::Tensor objective = loss.loss_sum;
  const auto microbatches = static_cast<double>(options.num_microbatches);
  if (!loss.num_tokens.defined()) {
    // A mean already. Gradients are averaged over dp * cp later: cp makes that a mean over dp of
    // sums over cp.
    objective = objective * (options.context_parallel_size / microbatches);
  } else if (!options.calculate_per_token_loss) {
    objective = objective / loss.num_tokens.clamp_min(1).to(objective.scalar_type());
    objective = objective / microbatches;
  }
  if (options.loss_scale != 1) objective = objective * options.loss_scale;
  return objective;
}

// What a forward pass leaves for its backward pass.
struct Pass {
  at::Tensor input;  // a received one: its gradient goes back
  torch::autograd::Edge
      output;            // of an output that was sent: the graph without the output's memory
  at::Tensor objective;  // on the last stage
};

class Executor {
 public:
  explicit Executor(const ForwardBackwardOptions& options)
      : options_(options),
        exchange_({.pp = options.pp,
                   .hidden_shape = options.hidden_shape,
                   .hidden_dtype = options.hidden_dtype,
                   .device = options.device,
                   .overlap = options.overlap_p2p_comm}) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Prepare());
    if (options_.ddp != nullptr) no_sync_.emplace(*options_.ddp);
    const RankSchedule& schedule = options_.schedule;
    for (size_t i = 0; i < schedule.size(); ++i) {
      if (!IsCommunication(schedule[i].kind)) {
        RETURN_IF_ERROR(RunOp(schedule[i]));
        continue;
      }
      size_t end = i + 1;
      while (end < schedule.size() && IsCommunication(schedule[end].kind) &&
             schedule[end].exchange == schedule[i].exchange) {
        ++end;
      }
      RETURN_IF_ERROR(exchange_.Post(absl::MakeConstSpan(schedule).subspan(i, end - i)));
      i = end - 1;
    }
    no_sync_.reset();
    RETURN_IF_ERROR(exchange_.Finish());
    for (auto& [key, tensor] : result_.reported) {
      if (tensor.numel() == 1) tensor.div_(static_cast<double>(options_.num_microbatches));
    }
    if (!result_.num_tokens.defined()) {
      result_.num_tokens =
          at::zeros({}, at::TensorOptions().dtype(at::kLong).device(options_.device));
    }
    return absl::OkStatus();
  }

  ForwardBackwardResult TakeResult() { return std::move(result_); }

 private:
  // Learns from the list which chunks have a stage before and behind them.
  absl::Status Prepare() {
    if (options_.data.size() != options_.chunks.size()) {
      return absl::InvalidArgumentError(absl::StrCat(options_.data.size(), " data iterators for ",
                                                     options_.chunks.size(), " chunks"));
    }
    receives_.resize(options_.chunks.size(), false);
    sends_ = receives_;
    bool communicates = false;
    for (const ScheduleOp& op : options_.schedule) {
      if (op.chunk < 0 || op.chunk >= static_cast<int>(options_.chunks.size())) {
        return absl::InvalidArgumentError(absl::StrCat("the schedule runs chunk ", op.chunk,
                                                       "; this rank has ", options_.chunks.size()));
      }
      if (op.kind == ScheduleOp::Kind::kRecvForward) receives_[op.chunk] = true;
      if (op.kind == ScheduleOp::Kind::kSendForward) sends_[op.chunk] = true;
      communicates |= IsCommunication(op.kind);
      const bool of_training = op.kind != ScheduleOp::Kind::kForward && !IsCommunication(op.kind);
      if (of_training && options_.ddp == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the schedule of a run without gradients holds ", ScheduleOpName(op.kind)));
      }
    }
    return communicates ? exchange_.Open() : absl::OkStatus();
  }

  absl::Status RunOp(const ScheduleOp& op) {
    switch (op.kind) {
      case ScheduleOp::Kind::kForward:
        return Forward(op);
      case ScheduleOp::Kind::kBackward:
        return Backward(op);
      case ScheduleOp::Kind::kGradSync:
        return options_.ddp->StartGradSync(op.chunk);
      case ScheduleOp::Kind::kParamSync:
        return options_.ddp->StartParamSync(op.chunk);
      case ScheduleOp::Kind::kSendForward:
      case ScheduleOp::Kind::kRecvForward:
      case ScheduleOp::Kind::kSendBackward:
      case ScheduleOp::Kind::kRecvBackward:
        break;
    }
    MUSTER_CHECK(false);
  }

  absl::Status Forward(const ScheduleOp& op) {
    const bool training = options_.ddp != nullptr;
    c10::AutoGradMode grad(training);
    Pass pass;
    if (receives_[op.chunk]) {
      ASSIGN_OR_RETURN(pass.input,
                       exchange_.Take(ScheduleOp::Kind::kRecvForward, op.chunk, op.microbatch));
      if (training) pass.input = pass.input.detach().requires_grad_(true);
    }
    {
      const TracePass traced(options_.trace, TraceKind::kForward, op.chunk, op.microbatch);
      RETURN_IF_ERROR(RunChunk(op, pass));
    }
    if (training) {
      passes_[{op.chunk, op.microbatch}] = std::move(pass);
    } else if (pass.input.defined()) {
      exchange_.Recycle(std::move(pass.input));
    }
    return absl::OkStatus();
  }

  absl::Status RunChunk(const ScheduleOp& op, Pass& pass) {
    ModelChunk& chunk = *options_.chunks[op.chunk];
    if (!chunk.awaits_parameters()) {
      for (const ParameterPtr& parameter : chunk.parameters()) parameter->AwaitGather();
    }
    chunk.SetFullRecompute(op.recompute);
    ASSIGN_OR_RETURN(ForwardStepResult step,
                     options_.forward_step.Run(*options_.data[op.chunk], chunk, pass.input));
    if (!sends_[op.chunk]) return Loss(step, pass);
    if (options_.ddp != nullptr && !step.checks.empty())
      result_.passes.push_back({.checks = std::move(step.checks)});
    // From here on only the message owns the output's memory.
    if (options_.ddp != nullptr) pass.output = torch::autograd::impl::gradient_edge(step.output);
    return exchange_.Put(ScheduleOp::Kind::kSendForward, op.chunk, op.microbatch, step.output);
  }

  // The last stage's.
  absl::Status Loss(ForwardStepResult& step, Pass& pass) {
    LossResult loss = step.loss_function(step.output);
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
    if (options_.ddp == nullptr) return absl::OkStatus();
    pass.objective = MicrobatchObjective(options_, loss);
    PassResult& result = result_.passes.emplace_back();
    result.loss_sum = loss.loss_sum.detach();
    result.checks = std::move(step.checks);
    for (ProviderCheck& check : loss.checks) result.checks.push_back(std::move(check));
    return absl::OkStatus();
  }

  absl::Status Backward(const ScheduleOp& op) {
    auto node = passes_.extract({op.chunk, op.microbatch});
    if (node.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("backward pass of chunk ", op.chunk,
                                                        ", microbatch ", op.microbatch,
                                                        ": its forward pass has not run"));
    }
    Pass pass = std::move(node.mapped());
    // All passes but a chunk's last only accumulate; the one outside no_sync lets the reductions
    // start.
    if (op.sync) no_sync_.reset();
    // A received gradient is waited for before the pass begins.
    at::Tensor gradient;
    if (sends_[op.chunk]) {
      ASSIGN_OR_RETURN(gradient,
                       exchange_.Take(ScheduleOp::Kind::kRecvBackward, op.chunk, op.microbatch));
    }
    {
      const TracePass traced(options_.trace, TraceKind::kBackward, op.chunk, op.microbatch);
      Differentiate(op, pass, std::move(gradient));
      RETURN_IF_ERROR(options_.ddp->EndBackward(op.chunk));
    }
    if (op.sync) no_sync_.emplace(*options_.ddp);
    if (!receives_[op.chunk]) return absl::OkStatus();
    at::Tensor input_gradient = std::exchange(pass.input.mutable_grad(), {});
    if (!input_gradient.defined()) input_gradient = at::zeros_like(pass.input);  // unused input
    exchange_.Recycle(std::exchange(pass.input, {}).detach());
    return exchange_.Put(ScheduleOp::Kind::kSendBackward, op.chunk, op.microbatch, input_gradient);
  }

  // Accumulates into the parameters and into pass.input; frees the graph. `gradient`: of a sent
  // output.
  void Differentiate(const ScheduleOp& op, Pass& pass, at::Tensor gradient) {
    if (!sends_[op.chunk]) {
      const at::Tensor objective = std::exchange(pass.objective, {});
      if (objective.requires_grad()) torch::autograd::backward({objective}, {});
      return;
    }
    const torch::autograd::Edge output = std::exchange(pass.output, {});
    if (output.is_valid()) {
      torch::autograd::Engine::get_default_engine().execute(
          {output}, {gradient}, /*keep_graph=*/false, /*create_graph=*/false,
          /*accumulate_grad=*/true);
    }
    exchange_.Recycle(std::move(gradient));
  }

  const ForwardBackwardOptions& options_;
  PipelineExchange exchange_;
  std::vector<bool> receives_, sends_;          // by chunk: from the stage before, to the next
  std::map<std::pair<int, int>, Pass> passes_;  // by chunk, microbatch: backward pass is due
  std::optional<DataParallel::NoSync> no_sync_;
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
