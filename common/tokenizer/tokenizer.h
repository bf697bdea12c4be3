// Text to token ids and back. Immutable after construction, so thread-safe. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  // Ids that stand for no text (eod, padding, ids beyond the vocabulary) give nothing.
  virtual std::string Decode(const std::vector<int64_t>& ids) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t eod() const = 0;                 // end of document
  virtual std::optional<int64_t> pad() const = 0;  // nullopt: none, all labels count
  // Names the tokenizer in cache keys: equal identities give equal ids.
  virtual std::string identity() const = 0;
};

// data.tokenizer_type and data.tokenizer_model. INVALID_ARGUMENT names the types that are known.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(absl::string_view type,
                                                         const std::optional<std::string>& model);

}  // namespace muster
