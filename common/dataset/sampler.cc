#include "common/dataset/sampler.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

absl::Status CheckOptions(const SamplerOptions& options) {
  if (options.total_samples < 1) {
    return absl::InvalidArgumentError("the dataset has no samples to draw from");
  }
  if (options.micro_batch_size < 1 || options.dp_size < 1 || options.consumed_samples < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro_batch_size=", options.micro_batch_size, " and dp_size=", options.dp_size,
        " must be at least 1, consumed_samples=", options.consumed_samples, " at least 0"));
  }
  if (options.dp_rank < 0 || options.dp_rank >= options.dp_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("dp_rank=", options.dp_rank, " must be in [0, ", options.dp_size, ")"));
  }
  return absl::OkStatus();
}

class SingleSampler final : public Sampler {
 public:
  explicit SingleSampler(const SamplerOptions& options)
      : options_(options), position_(options.consumed_samples) {}

  std::optional<std::vector<int64_t>> Next() override {
    const int64_t step = options_.micro_batch_size * options_.dp_size;
    if (position_ + step > options_.total_samples) return std::nullopt;
    std::vector<int64_t> indices(static_cast<size_t>(options_.micro_batch_size));
    std::iota(indices.begin(), indices.end(),
              position_ + options_.dp_rank * options_.micro_batch_size);
    position_ += step;
    return indices;
  }

 private:
  const SamplerOptions options_;
  int64_t position_;  // consumed samples of the job
};

class CyclicSampler final : public Sampler {
 public:
  CyclicSampler(const SamplerOptions& options, bool data_sharding, Permutation permutation)
      : options_(options),
        data_sharding_(data_sharding),
        permutation_(std::move(permutation)),
        step_(options.micro_batch_size * options.dp_size),
        active_(options.total_samples - options.total_samples % step_),
        consumed_(options.consumed_samples) {}

  std::optional<std::vector<int64_t>> Next() override {
    if (const int64_t epoch = consumed_ / active_; epoch != epoch_) {
      epoch_ = epoch;
      order_ = OrderOfEpoch();
    }
    // This rank has taken one microbatch out of its order for each step of the epoch.
    const int64_t taken = consumed_ % active_ / options_.dp_size;
    consumed_ += step_;
    const auto begin = order_.begin() + taken;
    return std::vector<int64_t>(begin, begin + options_.micro_batch_size);
  }

 private:
  // All samples of this rank in the current epoch. Ranks stop together at `active_`, where
  // Megatron's unsharded ranks may differ by one microbatch.
  std::vector<int64_t> OrderOfEpoch() const {
    const int64_t mbs = options_.micro_batch_size;
    if (data_sharding_) {
      const int64_t bucket = options_.total_samples / step_ * mbs;
      std::vector<int64_t> order = permutation_(bucket, epoch_);
      for (int64_t& index : order) index += options_.dp_rank * bucket;
      return order;
    }
    const std::vector<int64_t> all = permutation_(options_.total_samples / mbs * mbs, epoch_);
    std::vector<int64_t> order;
    for (size_t i = static_cast<size_t>(options_.dp_rank); i < all.size();
         i += static_cast<size_t>(options_.dp_size)) {
      order.push_back(all[i]);
    }
    return order;
  }

  const SamplerOptions options_;
  const bool data_sharding_;
  const Permutation permutation_;
  const int64_t step_;    // samples of all ranks' microbatches
  const int64_t active_;  // samples of an epoch
  int64_t consumed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

class FullValidationSampler final : public Sampler {
 public:
  explicit FullValidationSampler(const SamplerOptions& options)
      : options_(options), position_(options.dp_rank) {}

  std::optional<std::vector<int64_t>> Next() override {
    if (position_ >= options_.total_samples) return std::nullopt;
    const int64_t index = position_;
    position_ += options_.dp_size;
    return std::vector<int64_t>{index};
  }

 private:
  const SamplerOptions options_;
  int64_t position_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> MakeSingleSampler(const SamplerOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (options.consumed_samples >= options.total_samples) {
    return absl::OutOfRangeError(
        absl::StrCat("end of data: consumed_samples=", options.consumed_samples,
                     " of a dataset of ", options.total_samples, " samples"));
  }
  return std::make_unique<SingleSampler>(options);
}

absl::StatusOr<std::unique_ptr<Sampler>> MakeCyclicSampler(const SamplerOptions& options,
                                                           bool data_sharding,
                                                           Permutation permutation) {
  RETURN_IF_ERROR(CheckOptions(options));
  const int64_t step = options.micro_batch_size * options.dp_size;
  const int64_t active = options.total_samples - options.total_samples % step;
  if (active == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a dataset of ", options.total_samples, " samples is smaller than ",
                     "micro_batch_size * dp_size = ", step, "; the cyclic loader needs that many"));
  }
  if (options.consumed_samples % active % step != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("consumed_samples=", options.consumed_samples, " is ",
                     options.consumed_samples % active, " into its epoch of ", active,
                     " samples, which is no multiple of micro_batch_size * ", "dp_size = ", step));
  }
  return std::make_unique<CyclicSampler>(options, data_sharding, std::move(permutation));
}

absl::StatusOr<std::unique_ptr<Sampler>> MakeFullValidationSampler(const SamplerOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  return std::make_unique<FullValidationSampler>(options);
}

}  // namespace muster
