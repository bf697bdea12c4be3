#include "common/dataset/preprocess.h"

#include <memory>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/dataset/indexed_dataset_builder.h"
#include "common/files/mapped_file.h"

namespace muster {
namespace {

constexpr int64_t kProgressBytes = 1 << 20;

bool IsBlank(absl::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == absl::string_view::npos;
}

class Preprocessor {
 public:
  Preprocessor(const PreprocessOptions& options, const Tokenizer& tokenizer,
               IndexedDatasetBuilder builder)
      : options_(options), tokenizer_(tokenizer), builder_(std::move(builder)) {}

  absl::StatusOr<PreprocessSummary> Run(const std::vector<std::unique_ptr<MappedFile>>& inputs) {
    for (const auto& input : inputs) {
      progress_.bytes_total += static_cast<int64_t>(input->bytes().size());
    }
    for (const auto& input : inputs) RETURN_IF_ERROR(ReadFile(*input));
    if (builder_.num_documents() == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the input holds no document (", num_empty_, " empty ones)"));
    }
    RETURN_IF_ERROR(builder_.Finish());
    Report();
    const TokenType type = TokenTypeForVocabulary(tokenizer_.vocab_size());
    return PreprocessSummary{.output_prefix = options_.output_prefix,
                             .num_documents = builder_.num_documents(),
                             .num_tokens = builder_.num_tokens(),
                             .num_empty_documents = num_empty_,
                             .input_bytes = progress_.bytes_total,
                             .output_bytes = builder_.num_tokens() * TokenTypeSize(type)};
  }

 private:
  absl::Status ReadFile(const MappedFile& file) {
    switch (options_.format) {
      case TextFormat::kJsonLines:
        return ReadJsonLines(file);
      case TextFormat::kParagraphs:
        return ReadParagraphs(file);
      case TextFormat::kWholeFile:
        break;
    }
    RETURN_IF_ERROR(AddDocument(file.bytes()));
    Advance(static_cast<int64_t>(file.bytes().size()));
    return absl::OkStatus();
  }

  // Calls use(line without its newline, line number from 1).
  template <typename Use>
  absl::Status ForEachLine(const MappedFile& file, Use use) {
    absl::string_view rest = file.bytes();
    for (int64_t number = 1; !rest.empty(); ++number) {
      const size_t newline = rest.find('\n');
      const absl::string_view line = rest.substr(0, newline);
      const size_t taken = newline == absl::string_view::npos ? rest.size() : newline + 1;
      RETURN_IF_ERROR(use(line, number));
      rest.remove_prefix(taken);
      Advance(static_cast<int64_t>(taken));
    }
    return absl::OkStatus();
  }

  absl::Status ReadJsonLines(const MappedFile& file) {
    return ForEachLine(file, [&](absl::string_view line, int64_t number) {
      if (IsBlank(line)) return absl::OkStatus();
      const auto bad = [&](const auto&... what) {
        return absl::InvalidArgumentError(absl::StrCat(file.path(), ":", number, ": ", what...));
      };
      const nlohmann::json document = nlohmann::json::parse(
          line.begin(), line.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
      if (document.is_discarded()) return bad("not valid JSON (one object a line, in UTF-8)");
      if (!document.is_object()) return bad("not a JSON object");
      const auto text = document.find(options_.json_key);
      if (text == document.end()) return bad("the object has no \"", options_.json_key, "\"");
      if (!text->is_string()) return bad("\"", options_.json_key, "\" is not a string");
      return AddDocument(text->get_ref<const std::string&>());
    });
  }

  // A paragraph keeps its inner newlines and loses the last one.
  absl::Status ReadParagraphs(const MappedFile& file) {
    absl::string_view paragraph;  // a part of the file; empty between paragraphs
    const auto flush = [&] {
      const absl::string_view whole = absl::StripSuffix(paragraph, "\r");
      paragraph = absl::string_view();
      return whole.empty() ? absl::OkStatus() : AddDocument(whole);
    };
    RETURN_IF_ERROR(ForEachLine(file, [&](absl::string_view line, int64_t) {
      if (IsBlank(line)) return flush();
      const char* const begin = paragraph.empty() ? line.data() : paragraph.data();
      paragraph = absl::string_view(begin, static_cast<size_t>(line.data() + line.size() - begin));
      return absl::OkStatus();
    }));
    return flush();
  }

  absl::Status AddDocument(absl::string_view text) {
    std::vector<int64_t> tokens = tokenizer_.Encode(text);
    if (tokens.empty()) {
      ++num_empty_;
      return absl::OkStatus();
    }
    if (options_.append_eod) tokens.push_back(tokenizer_.eod());
    return builder_.AddDocument(tokens);
  }

  void Advance(int64_t bytes) {
    progress_.bytes_read += bytes;
    if (progress_.bytes_read - reported_bytes_ >= kProgressBytes) Report();
  }

  void Report() {
    reported_bytes_ = progress_.bytes_read;
    progress_.num_documents = builder_.num_documents();
    progress_.num_tokens = builder_.num_tokens();
    if (options_.progress) options_.progress(progress_);
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  IndexedDatasetBuilder builder_;
  PreprocessProgress progress_;
  int64_t reported_bytes_ = 0;
  int64_t num_empty_ = 0;
};

}  // namespace

absl::StatusOr<TextFormat> ParseTextFormat(absl::string_view name) {
  if (name == "jsonl") return TextFormat::kJsonLines;
  if (name == "paragraphs") return TextFormat::kParagraphs;
  if (name == "file") return TextFormat::kWholeFile;
  return absl::InvalidArgumentError(
      absl::StrCat("text format \"", name, "\" is unknown; known: jsonl, paragraphs, file"));
}

absl::StatusOr<PreprocessSummary> Preprocess(const PreprocessOptions& options,
                                             const Tokenizer& tokenizer) {
  if (options.inputs.empty()) return absl::InvalidArgumentError("no input file is given");
  // All inputs are opened before anything is written: a wrong name costs no time.
  std::vector<std::unique_ptr<MappedFile>> inputs;
  for (const std::string& path : options.inputs) {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> input, MappedFile::Open(path));
    inputs.push_back(std::move(input));
  }
  FileOps& files = options.files != nullptr ? *options.files : FileOps::Real();
  ASSIGN_OR_RETURN(
      IndexedDatasetBuilder builder,
      IndexedDatasetBuilder::Create(options.output_prefix,
                                    TokenTypeForVocabulary(tokenizer.vocab_size()), files));
  return Preprocessor(options, tokenizer, std::move(builder)).Run(inputs);
}

}  // namespace muster
