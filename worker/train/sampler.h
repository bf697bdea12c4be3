// Next-token sampling from logits: greedy, or temperature with an optional top-k cut. Pure; draws
// from the generator given.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace muster {

struct SamplingOptions {
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // 0: all
};

// `logits`: (V) of any float dtype; `vocab_size`: tokens that exist (the rest of V is padding and
// is never drawn).
int64_t SampleToken(const at::Tensor& logits, int64_t vocab_size, const SamplingOptions& options,
                    at::Generator generator);

}  // namespace muster
