#include "worker/train/step_report.h"
#include "common/schedule/from_spec.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/model/tensor_memory.h"

namespace muster {

double MainLoss(const std::map<std::string, double>& losses) {
  if (auto it = losses.find("lm loss"); it != losses.end()) return it->second;
  return losses.empty() ? std::nan("") : losses.begin()->second;
}

StepMessage MakeStepMessage(const JobState& state, const TrainStepResult& step,
                            absl::Duration elapsed, int64_t epoch, int64_t applied_directive,
                            std::map<std::string, double> timers_ms) {
  StepMessage message;
  message.epoch = epoch;
  message.iteration = state.progress.iteration;
  message.consumed_samples = state.progress.consumed_train_samples;
  const double loss = MainLoss(step.losses);
  if (std::isfinite(loss)) {
    message.lm_loss = loss;
  } else {
    message.loss_text = absl::StrCat(loss);
  }
  message.grad_norm = step.grad_norm;
  message.num_zeros = step.num_zeros;
  message.params_norm = step.params_norm;
  for (const auto& loss : kStepSideLosses) {
    if (auto it = step.side_losses.find(loss.name); it != step.side_losses.end())
      message.*loss.value = it->second;
  }
  message.learning_rate = state.optimizer->logged_lr();
  message.loss_scale = step.loss_scale;
  message.skipped = step.skipped;
  message.elapsed_ms = absl::ToDoubleMilliseconds(elapsed);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const int64_t samples = step.batch.running_batch_size;
  if (seconds > 0) {
    message.tokens_per_s = static_cast<double>(samples * state.spec.model.seq_length) / seconds;
    message.tflops_per_device =
        FlopsOfBatch(FlopsModelOf(state.spec, state.sizes), samples, state.spec.model.seq_length) /
        (seconds * 1e12 * static_cast<double>(state.spec.resources.world_size));
  }
  message.num_floating_point_operations_so_far = state.progress.floating_point_operations_so_far;
  message.memory_bytes = TensorMemoryOn(state.device).peak_bytes;
  message.applied_directive = applied_directive;
  message.global_batch_size = samples;
  message.timers_ms = std::move(timers_ms);
  return message;
}

std::string TrainingLog::Add(const StepMessage& step, const std::map<std::string, double>& losses,
                             int64_t train_iters) {
  if (log_interval_ == 0) return "";
  step.skipped ? ++skipped_ : ++advanced_;
  if (step.skipped && !step.lm_loss.has_value()) ++nan_;
  elapsed_ms_ += step.elapsed_ms;
  tokens_ += step.tokens_per_s * step.elapsed_ms / 1000;
  if (!step.skipped) {
    for (const auto& [key, value] : losses) sums_[key] += value;
  }
  const bool due = step.iteration % log_interval_ == 0;
  if (!due && !first_) return "";
  const auto iterations = static_cast<double>(advanced_ + skipped_);
  std::string line = absl::StrFormat(" iteration %8d/%8d | consumed samples: %12d |",
                                     step.iteration, train_iters, step.consumed_samples);
  absl::StrAppendFormat(&line, " elapsed time per iteration (ms): %.1f |",
                        elapsed_ms_ / iterations);
  absl::StrAppendFormat(&line, " tokens/s: %.0f | throughput per GPU (TFLOP/s/GPU): %.4f |",
                        tokens_ * 1000 / elapsed_ms_, step.tflops_per_device);
  absl::StrAppendFormat(&line, " learning rate: %.6E | global batch size: %5d |",
                        step.learning_rate, step.global_batch_size);
  for (const auto& [key, sum] : sums_) {
    absl::StrAppendFormat(&line, " %s: %.6E |", key,
                          sum / static_cast<double>(std::max<int64_t>(1, advanced_)));
  }
  absl::StrAppendFormat(&line, " loss scale: %.1f |", step.loss_scale);
  if (step.grad_norm.has_value())
    absl::StrAppendFormat(&line, " grad norm: %.3f |", *step.grad_norm);
  if (step.num_zeros.has_value()) absl::StrAppendFormat(&line, " num zeros: %d |", *step.num_zeros);
  if (step.params_norm.has_value())
    absl::StrAppendFormat(&line, " params norm: %.3f |", *step.params_norm);
  absl::StrAppendFormat(&line,
                        " number of skipped iterations: %3d | number of nan iterations: %3d |",
                        skipped_, nan_);
  first_ = false;
  if (due) {
    advanced_ = skipped_ = nan_ = 0;
    elapsed_ms_ = tokens_ = 0;
    sums_.clear();
  }
  return line;
}

}  // namespace muster
