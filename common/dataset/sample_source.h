// Samples of text: a GPT dataset over one token source, or a mixture of several. Immutable, so
// thread-safe. Text of a sample: seq_length + 1 tokens, the padding as -1 ("no token").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/dataset/blend.h"
#include "common/dataset/gpt_index.h"
#include "common/dataset/token_source.h"

namespace muster {

// Stands for padding in a text; no token of a vocabulary.
inline constexpr int64_t kNoToken = -1;

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  // Needs 0 <= sample < size(); writes seq_length + 1 tokens.
  virtual void ReadText(int64_t sample, int64_t* text) const = 0;
};

class GptSamples final : public SampleSource {
 public:
  // `index` must have been built over `source` with this seq_length and an extra token.
  GptSamples(std::shared_ptr<const TokenSource> source, GptIndex index, int64_t seq_length)
      : source_(std::move(source)), index_(std::move(index)), seq_length_(seq_length) {}
  int64_t size() const override { return index_.num_samples(); }
  void ReadText(int64_t sample, int64_t* text) const override;

 private:
  const std::shared_ptr<const TokenSource> source_;
  const GptIndex index_;
  const int64_t seq_length_;
};

class BlendedSamples final : public SampleSource {
 public:
  // OUT_OF_RANGE when the blend wants more samples of a part than it has.
  static absl::StatusOr<std::shared_ptr<const SampleSource>> Create(
      std::vector<std::shared_ptr<const SampleSource>> parts, BlendIndex index);
  int64_t size() const override { return static_cast<int64_t>(index_.dataset.size()); }
  void ReadText(int64_t sample, int64_t* text) const override;

 private:
  BlendedSamples(std::vector<std::shared_ptr<const SampleSource>> parts, BlendIndex index)
      : parts_(std::move(parts)), index_(std::move(index)) {}

  const std::vector<std::shared_ptr<const SampleSource>> parts_;
  const BlendIndex index_;
};

}  // namespace muster
