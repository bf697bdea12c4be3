// Samples of text collated into batches of tensors. Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "common/dataset/gpt_sample.h"
#include "common/dataset/sample_source.h"
#include "worker/data/batch.h"

namespace muster {

class GptDataset final : public Dataset {
 public:
  // Tokens must be below `vocab_size`; the attention mask is made only where
  // options.reset_attention_mask needs one.
  GptDataset(std::shared_ptr<const SampleSource> samples, GptSampleOptions options,
             int64_t vocab_size)
      : samples_(std::move(samples)), options_(options), vocab_size_(vocab_size) {}

  int64_t size() const override { return samples_->size(); }
  // Also DATA_LOSS for a token outside the vocabulary.
  absl::StatusOr<Batch> Collate(const std::vector<int64_t>& indices) const override;

 private:
  const std::shared_ptr<const SampleSource> samples_;
  const GptSampleOptions options_;
  const int64_t vocab_size_;
};

}  // namespace muster
