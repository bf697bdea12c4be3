// How many samples each data set must hold, and where each one starts (reference 10.5). Pure.
#pragma once

#include <cstdint>
#include <optional>

namespace muster {

struct SampleCountOptions {
  int64_t global_batch_size = 1;
  std::optional<int64_t> train_iters, train_samples;  // one of them
  std::optional<int64_t> eval_interval;               // not set: evaluation at the end only
  int64_t eval_iters = 0;
  std::optional<int64_t> eval_global_batch_size;  // default global_batch_size
  int64_t start_eval_at_iter = 0;
  bool at_start = false;  // one more evaluation, before the first step
  bool skip_train = false;
  bool full_validation = false;
};

struct SampleCounts {
  int64_t train = 0;
  std::optional<int64_t> valid;  // none: the whole set (full_validation)
  int64_t test = 0;
};
SampleCounts CountSamples(const SampleCountOptions& options);

// Position in each set when a run resumes at `iteration`. `saved_*` come from the checkpoint; 0
// with iteration > 0 (an old or foreign checkpoint) is computed, as long as the run counts in
// iterations.
struct ConsumedSamples {
  int64_t train = 0, valid = 0;
};
ConsumedSamples ResumePosition(const SampleCountOptions& options, int64_t iteration,
                               int64_t saved_train, int64_t saved_valid);

}  // namespace muster
