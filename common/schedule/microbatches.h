// Global batch size -> number of microbatches, with Megatron's batch-size ramp-up (0.16,
// --rampup-batch-size) and --decrease-batch-size-if-needed (reference 9). Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace muster {

struct BatchRampup {
  int64_t start = 0;      // samples, the first global batch size
  int64_t increment = 0;  // samples a stage
  int64_t samples = 0;    // consumed samples over which it grows to the full size
};

struct MicrobatchOptions {
  int64_t global_batch_size = 0;  // samples
  int64_t micro_batch_size = 0;   // samples
  int64_t data_parallel_size = 1;
  std::optional<BatchRampup> rampup;
  // Runs the largest multiple of micro_batch_size * data_parallel_size that is not above the
  // global batch size, where it does not divide.
  bool decrease_batch_size_if_needed = false;
};

struct BatchSizes {
  int64_t global_batch_size = 0;   // samples, as scheduled
  int64_t running_batch_size = 0;  // samples that are really used
  int64_t num_microbatches = 0;    // of each data-parallel rank; running / (micro * dp)
  bool operator==(const BatchSizes&) const = default;
};

class MicrobatchCalculator {
 public:
  // INVALID_ARGUMENT names the rule. A constant size must divide and give at least one microbatch.
  static absl::StatusOr<MicrobatchCalculator> Create(const MicrobatchOptions& options);

  // Sizes once `consumed_samples` have been consumed; no check of divisibility (num_microbatches is
  // then rounded down).
  BatchSizes Sizes(int64_t consumed_samples) const;
  // The same, INVALID_ARGUMENT when a step cannot run with it: not divisible (and not decreased),
  // or no microbatch at all. Megatron's update(consistency_check=True).
  absl::StatusOr<BatchSizes> CheckedSizes(int64_t consumed_samples) const;

  const MicrobatchOptions& options() const { return options_; }

 private:
  explicit MicrobatchCalculator(const MicrobatchOptions& options) : options_(options) {}
  int64_t ScheduledSize(int64_t consumed_samples) const;

  MicrobatchOptions options_;
};

}  // namespace muster
