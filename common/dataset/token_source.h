// Where a dataset's tokens come from: the sequences of an indexed file, or the mock documents.
// Immutable, so thread-safe.
#pragma once

#include <cstdint>

namespace muster {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t num_sequences() const = 0;
  virtual int64_t sequence_length(int64_t sequence) const = 0;  // tokens
  // Needs 0 <= offset, 0 <= count, offset + count <= sequence_length(sequence).
  virtual void Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const = 0;
};

}  // namespace muster
