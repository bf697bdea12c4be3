// Which samples a data-parallel rank reads, one microbatch after the other, from the consumed
// sample on (Megatron's MegatronPretrainingSampler, ...RandomSampler and the full-validation one).
// Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct SamplerOptions {
  int64_t total_samples = 0;
  int64_t consumed_samples = 0;  // of the whole job
  int64_t micro_batch_size = 1;
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  // The sample indices of the next microbatch; nullopt at the end of the data.
  virtual std::optional<std::vector<int64_t>> Next() = 0;
};

// Each mbs * dp consecutive samples are one step: rank r takes [r * mbs, (r + 1) * mbs). The
// incomplete tail is dropped. INVALID_ARGUMENT: no samples, rank outside [0, dp);
// OUT_OF_RANGE: all samples are consumed.
absl::StatusOr<std::unique_ptr<Sampler>> MakeSingleSampler(const SamplerOptions& options);

// A permutation of [0, size) that is a function of size and seed: torch's randperm with a CPU
// generator, for Megatron's order.
using Permutation = std::function<std::vector<int64_t>(int64_t size, int64_t seed)>;

// Endless; epoch e is shuffled with seed e (not the job's seed). With `data_sharding` each rank
// shuffles a part of its own, else all take turns in one permutation. INVALID_ARGUMENT: fewer than
// mbs * dp samples, consumed samples not a multiple of mbs * dp within the epoch.
absl::StatusOr<std::unique_ptr<Sampler>> MakeCyclicSampler(const SamplerOptions& options,
                                                           bool data_sharding,
                                                           Permutation permutation);

// One sample a microbatch: rank r takes r, r + dp, ...
absl::StatusOr<std::unique_ptr<Sampler>> MakeFullValidationSampler(const SamplerOptions& options);

}  // namespace muster
