// Where a training step's time goes: each part of the model alone, forward and backward, at the
// step's shapes. Caches are warmer than inside a step, so the parts add up to a little less.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/transformer_config.h"

namespace muster {

struct PartTime {
  std::string name;
  double cpu_seconds = 0;  // of all its uses in one step
};

// The best of `repeats` runs of each part. bf16 or fp32, CPU, one thread calls.
std::vector<PartTime> TimeParts(const TransformerConfig& config, int64_t batch, int64_t seq,
                                at::ScalarType dtype, int64_t repeats);

}  // namespace muster
