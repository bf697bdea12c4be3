// Bytes as tokens: ids 0 to 255 are the bytes, 256 is the end of a document; no padding id.
#pragma once

#include "common/tokenizer/tokenizer.h"

namespace muster {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kEod = 256;

  std::vector<int64_t> Encode(absl::string_view text) const override;
  std::string Decode(const std::vector<int64_t>& ids) const override;
  int64_t vocab_size() const override { return kEod + 1; }
  int64_t eod() const override { return kEod; }
  std::optional<int64_t> pad() const override { return std::nullopt; }
  std::string identity() const override { return "byte"; }
};

}  // namespace muster
