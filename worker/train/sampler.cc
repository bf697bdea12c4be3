#include "worker/train/sampler.h"

#include <ATen/ATen.h>

namespace muster {

int64_t SampleToken(const at::Tensor& logits, int64_t vocab_size, const SamplingOptions& options,
                    at::Generator generator) {
  at::Tensor scores = logits.narrow(0, 0, vocab_size).to(at::kCPU, at::kDouble);
  if (options.temperature <= 0) return scores.argmax().item<int64_t>();
  scores = scores / options.temperature;
  if (options.top_k > 0 && options.top_k < vocab_size) {
    auto [values, indices] = scores.topk(options.top_k);
    const at::Tensor probabilities = at::softmax(values, 0);
    return indices[at::multinomial(probabilities, 1, false, generator).item<int64_t>()]
        .item<int64_t>();
  }
  return at::multinomial(at::softmax(scores, 0), 1, false, generator).item<int64_t>();
}

}  // namespace muster
