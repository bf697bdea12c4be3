#include "common/schedule/eval_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Why nothing can be evaluated, or empty.
std::string Obstacle(const EvalScheduleOptions& options) {
  if (!options.do_valid) return "there is no validation data";
  if (options.eval_iters <= 0) return "eval_iters is 0";
  return "";
}

}  // namespace

EvalDecision EvaluateAtStart(const EvalScheduleOptions& options, int64_t start_iteration) {
  if (!options.at_start) return {false, "at_start is off"};
  if (std::string obstacle = Obstacle(options); !obstacle.empty()) return {false, obstacle};
  if (start_iteration != 0) {
    return {false, absl::StrCat("resumed at iteration ", start_iteration)};
  }
  return {true, "at_start"};
}

EvalDecision EvaluateAfterStep(const EvalScheduleOptions& options, int64_t iteration,
                               const std::string& requested) {
  if (std::string obstacle = Obstacle(options); !obstacle.empty()) return {false, obstacle};
  if (!requested.empty()) return {true, requested};
  if (!options.eval_interval.has_value()) return {false, "eval_interval is not set"};
  if (iteration % *options.eval_interval != 0) {
    return {false,
            absl::StrCat("eval_interval ", *options.eval_interval, " does not divide ", iteration)};
  }
  if (iteration < options.start_eval_at_iter) {
    return {false, absl::StrCat("before start_eval_at_iter ", options.start_eval_at_iter)};
  }
  return {true, absl::StrCat("eval_interval ", *options.eval_interval)};
}

FinalEvaluations EvaluateAtEnd(const EvalScheduleOptions& options, bool left_early) {
  if (left_early) return {false, false, "the run left its loop early"};
  if (options.eval_iters <= 0) return {false, false, "eval_iters is 0"};
  return {options.do_valid, options.do_test, "end of training"};
}

std::optional<int64_t> NextEvaluation(const EvalScheduleOptions& options, int64_t iteration,
                                      int64_t train_iters) {
  if (options.eval_iters <= 0 || iteration >= train_iters) return std::nullopt;
  if (options.eval_interval.has_value() && options.do_valid) {
    const int64_t interval = *options.eval_interval;
    const int64_t first = std::max(iteration + 1, options.start_eval_at_iter);
    const int64_t next = (first + interval - 1) / interval * interval;
    if (next <= train_iters) return next;
  }
  return options.do_valid || options.do_test ? std::optional<int64_t>(train_iters) : std::nullopt;
}

absl::StatusOr<int64_t> EvalMicrobatches(int64_t eval_global_batch_size, int64_t micro_batch_size,
                                         int64_t data_parallel_size) {
  const int64_t unit = micro_batch_size * data_parallel_size;
  if (eval_global_batch_size < 1 || unit < 1 || eval_global_batch_size % unit != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("evaluation.eval_global_batch_size=", eval_global_batch_size,
                     " must be a positive multiple of micro_batch_size=", micro_batch_size,
                     " x data parallel size ", data_parallel_size));
  }
  return eval_global_batch_size / unit;
}

}  // namespace muster
