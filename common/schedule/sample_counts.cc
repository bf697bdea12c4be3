#include "common/schedule/sample_counts.h"

#include <algorithm>

namespace muster {
namespace {

int64_t EvalSamples(const SampleCountOptions& o) {
  return o.eval_iters * o.eval_global_batch_size.value_or(o.global_batch_size);
}

// Interval evaluations up to `iteration`, less those before start_eval_at_iter.
int64_t IntervalEvaluations(const SampleCountOptions& o, int64_t iteration, int64_t extra) {
  if (!o.eval_interval.has_value()) return extra;
  return std::max<int64_t>(
      0, iteration / *o.eval_interval + extra - o.start_eval_at_iter / *o.eval_interval);
}

}  // namespace

SampleCounts CountSamples(const SampleCountOptions& o) {
  SampleCounts counts;
  const int64_t train_iters =
      o.train_iters.value_or(o.train_samples.value_or(0) / o.global_batch_size);
  counts.train = o.train_samples.value_or(train_iters * o.global_batch_size);
  counts.test = EvalSamples(o);
  if (o.full_validation) {
    counts.valid = std::nullopt;
  } else if (o.skip_train) {
    counts.valid = EvalSamples(o);
  } else {
    const int64_t num_evaluations = IntervalEvaluations(o, train_iters, 1) + (o.at_start ? 1 : 0);
    counts.valid = num_evaluations * EvalSamples(o);
  }
  return counts;
}

ConsumedSamples ResumePosition(const SampleCountOptions& o, int64_t iteration, int64_t saved_train,
                               int64_t saved_valid) {
  ConsumedSamples consumed{saved_train, saved_valid};
  const bool counts_iterations = !o.train_samples.has_value();
  if (iteration > 0 && counts_iterations) {
    if (consumed.train == 0) consumed.train = iteration * o.global_batch_size;
    if (consumed.valid == 0) consumed.valid = IntervalEvaluations(o, iteration, 0) * EvalSamples(o);
  }
  if (o.skip_train || o.full_validation) consumed.valid = 0;
  return consumed;
}

}  // namespace muster
