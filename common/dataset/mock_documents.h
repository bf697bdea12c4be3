// Megatron's mock data: 100,000 documents whose lengths are numpy's default_rng(0).integers(1,
// 4096) and whose tokens count up from 1 (modulo the vocabulary) to end with eod. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/dataset/token_source.h"

namespace muster {

class MockDocuments final : public TokenSource {
 public:
  static constexpr int64_t kNumDocuments = 100'000;

  // The last id of the vocabulary is its end of document.
  explicit MockDocuments(int64_t vocab_size);

  int64_t num_sequences() const override { return kNumDocuments; }
  int64_t sequence_length(int64_t sequence) const override {
    return lengths_[static_cast<size_t>(sequence)];
  }
  void Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const override;
  int64_t eod() const { return vocab_size_ - 1; }

 private:
  const int64_t vocab_size_;
  std::vector<int32_t> lengths_;
};

}  // namespace muster
