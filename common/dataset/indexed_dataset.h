// Megatron's indexed dataset: PREFIX.idx (lengths, offsets, document boundaries) and PREFIX.bin
// (tokens back to back), both memory-mapped. Byte layout: docs/formats.md. Immutable after Open, so
// thread-safe.
//
// Invariants checked by Open: document boundaries begin with 0, never fall, and end with the number
// of sequences; every sequence lies inside the .bin file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dataset/token_source.h"
#include "common/dataset/token_type.h"
#include "common/files/mapped_file.h"

namespace muster {

inline constexpr absl::string_view kIndexMagic("MMIDIDX\0\0", 9);
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr int64_t kIndexHeaderBytes = 34;

class IndexedDataset final : public TokenSource {
 public:
  // NOT_FOUND for a missing file; DATA_LOSS naming the file and the rule it breaks.
  static absl::StatusOr<std::shared_ptr<const IndexedDataset>> Open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return token_type_; }
  int64_t num_documents() const { return num_boundaries_ - 1; }
  // Document d is made of sequences [boundary(d), boundary(d + 1)).
  int64_t document_boundary(int64_t document) const;
  int64_t num_tokens() const { return num_tokens_; }
  bool has_modes() const { return modes_ != nullptr; }
  int8_t sequence_mode(int64_t sequence) const;  // needs has_modes()

  int64_t num_sequences() const override { return num_sequences_; }
  int64_t sequence_length(int64_t sequence) const override;
  void Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const override;
  // A whole sequence.
  std::vector<int64_t> Sequence(int64_t sequence) const;
  // Its bytes as they are in the file.
  absl::string_view SequenceBytes(int64_t sequence) const;

 private:
  IndexedDataset() = default;
  absl::Status ParseIndex();
  absl::Status CheckSequences();

  std::string prefix_;
  std::unique_ptr<MappedFile> index_file_, token_file_;
  TokenType token_type_ = TokenType::kUint16;
  int64_t num_sequences_ = 0;
  int64_t num_boundaries_ = 0;
  int64_t num_tokens_ = 0;
  // Into index_file_; unaligned, so read by memcpy.
  const char* lengths_ = nullptr;     // (num_sequences) int32
  const char* offsets_ = nullptr;     // (num_sequences) int64, bytes into .bin
  const char* boundaries_ = nullptr;  // (num_boundaries) int64
  const char* modes_ = nullptr;       // (num_sequences) int8, multimodal files only
};

}  // namespace muster
