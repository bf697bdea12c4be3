// Text files into Megatron's .bin/.idx: each document tokenized, eod appended, one sequence each.
// Behind `muster data preprocess`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files/file_ops.h"
#include "common/tokenizer/tokenizer.h"

namespace muster {

enum class TextFormat {
  kJsonLines,   // one JSON object a line; the document is its `json_key`
  kParagraphs,  // plain text; documents are separated by blank lines
  kWholeFile,   // plain text; a file is a document
};
// "jsonl", "paragraphs", "file"; INVALID_ARGUMENT names them.
absl::StatusOr<TextFormat> ParseTextFormat(absl::string_view name);

struct PreprocessProgress {
  int64_t bytes_read = 0, bytes_total = 0;  // of all inputs
  int64_t num_documents = 0, num_tokens = 0;
};

struct PreprocessOptions {
  std::vector<std::string> inputs;  // in this order
  TextFormat format = TextFormat::kJsonLines;
  std::string json_key = "text";
  std::string output_prefix;  // writes PREFIX.bin and PREFIX.idx
  bool append_eod = true;
  // Called about every MiB of input and at the end, in the caller's thread; may be empty.
  std::function<void(const PreprocessProgress&)> progress;
  FileOps* files = nullptr;  // nullptr: the real file system
};

struct PreprocessSummary {
  std::string output_prefix;
  int64_t num_documents = 0, num_tokens = 0;
  int64_t num_empty_documents = 0;  // skipped
  int64_t input_bytes = 0, output_bytes = 0;
};

// INVALID_ARGUMENT "FILE:LINE: ..." for a line that is not a JSON object with a string under
// json_key; NOT_FOUND for a missing input; FAILED_PRECONDITION when there is no document at all.
// On an error nothing is left at the output.
absl::StatusOr<PreprocessSummary> Preprocess(const PreprocessOptions& options,
                                             const Tokenizer& tokenizer);

}  // namespace muster
