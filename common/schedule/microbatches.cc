#include "common/schedule/microbatches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

absl::Status CheckRampup(const MicrobatchOptions& options) {
  const BatchRampup& rampup = *options.rampup;
  auto invalid = [&](absl::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.rampup_batch_size=[", rampup.start, ", ", rampup.increment, ", ", rampup.samples,
        "] with global_batch_size=", options.global_batch_size, ": ", rule));
  };
  if (rampup.start < 1) return invalid("the start must be at least 1");
  if (rampup.increment < 1) return invalid("the increment must be at least 1");
  // Megatron divides by zero in the two cases below that it does not check.
  if (rampup.samples < 1) return invalid("the number of samples must be at least 1");
  if (rampup.start >= options.global_batch_size) {
    return invalid("the start must be below the global batch size");
  }
  if ((options.global_batch_size - rampup.start) % rampup.increment != 0) {
    return invalid("the increment must divide the global batch size minus the start");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MicrobatchCalculator> MicrobatchCalculator::Create(
    const MicrobatchOptions& options) {
  if (options.global_batch_size < 1 || options.micro_batch_size < 1 ||
      options.data_parallel_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.global_batch_size=", options.global_batch_size,
        ", training.micro_batch_size=", options.micro_batch_size, " and the data parallel size ",
        options.data_parallel_size, " must be at least 1"));
  }
  const MicrobatchCalculator calculator(options);
  if (options.rampup.has_value()) {
    RETURN_IF_ERROR(CheckRampup(options));
  } else {
    RETURN_IF_ERROR(calculator.CheckedSizes(0).status());
  }
  return calculator;
}

int64_t MicrobatchCalculator::ScheduledSize(int64_t consumed_samples) const {
  const int64_t full = options_.global_batch_size;
  if (!options_.rampup.has_value() || consumed_samples > options_.rampup->samples) return full;
  const BatchRampup& rampup = *options_.rampup;
  const int64_t num_increments = (full - rampup.start) / rampup.increment;
  const double samples_per_increment =
      static_cast<double>(rampup.samples) / static_cast<double>(num_increments);
  const int64_t steps =
      static_cast<int64_t>(static_cast<double>(consumed_samples) / samples_per_increment);
  return rampup.start + steps * rampup.increment;
}

BatchSizes MicrobatchCalculator::Sizes(int64_t consumed_samples) const {
  const int64_t unit = options_.micro_batch_size * options_.data_parallel_size;
  BatchSizes sizes;
  sizes.global_batch_size = ScheduledSize(consumed_samples);
  sizes.running_batch_size = options_.decrease_batch_size_if_needed
                                 ? sizes.global_batch_size / unit * unit
                                 : sizes.global_batch_size;
  sizes.num_microbatches = sizes.running_batch_size / unit;
  return sizes;
}

absl::StatusOr<BatchSizes> MicrobatchCalculator::CheckedSizes(int64_t consumed_samples) const {
  const BatchSizes sizes = Sizes(consumed_samples);
  const int64_t unit = options_.micro_batch_size * options_.data_parallel_size;
  const std::string factors =
      absl::StrCat("training.micro_batch_size=", options_.micro_batch_size,
                   " x data parallel size ", options_.data_parallel_size, " = ", unit);
  if (sizes.running_batch_size % unit != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.global_batch_size=", sizes.global_batch_size, " at ",
                     consumed_samples, " consumed samples must be a multiple of ", factors,
                     " (or set training.decrease_batch_size_if_needed)"));
  }
  if (sizes.num_microbatches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.global_batch_size=", sizes.global_batch_size, " at ",
                     consumed_samples, " consumed samples must be at least ", factors));
  }
  return sizes;
}

}  // namespace muster
