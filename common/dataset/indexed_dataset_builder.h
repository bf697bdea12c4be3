// Writes Megatron's .bin/.idx pair. Both files are written aside and renamed by Finish, .idx last,
// so a reader never sees an .idx without its tokens. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/indexed_dataset.h"
#include "common/dataset/token_type.h"
#include "common/files/file_ops.h"

namespace muster {

class IndexedDatasetBuilder {
 public:
  // Creates PREFIX.bin.partial. `files` must outlive the builder.
  static absl::StatusOr<IndexedDatasetBuilder> Create(const std::string& prefix, TokenType type,
                                                      FileOps& files = FileOps::Real());
  IndexedDatasetBuilder(IndexedDatasetBuilder&&) = default;
  // Without Finish: removes what was written aside.
  ~IndexedDatasetBuilder();

  // A document of one sequence. OUT_OF_RANGE for a token that the type cannot hold.
  absl::Status AddDocument(const std::vector<int64_t>& tokens);
  // A document of several sequences; `lengths` must add up to the number of tokens.
  absl::Status AddDocument(const std::vector<int64_t>& tokens, const std::vector<int64_t>& lengths);
  // All of another file's documents, in its order. The token types must be the same.
  absl::Status AddDataset(const IndexedDataset& dataset);
  // Flushes, syncs and renames. Nothing may be added afterwards.
  absl::Status Finish();

  int64_t num_documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t num_tokens() const { return num_bytes_ / TokenTypeSize(type_); }

 private:
  IndexedDatasetBuilder(std::string prefix, TokenType type, FileOps& files)
      : prefix_(std::move(prefix)), type_(type), files_(&files) {}
  absl::Status AppendBytes(absl::string_view bytes);
  std::string IndexBytes() const;

  std::string prefix_;
  TokenType type_;
  FileOps* files_;
  std::unique_ptr<WritableFile> token_file_;  // null after Finish
  std::string buffer_;                        // tokens not yet handed to token_file_
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_ = {0};
  int64_t num_bytes_ = 0;
};

}  // namespace muster
