#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/dataset/preprocess.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

int RunPreprocess(const Invocation& invocation) {
  if (!invocation.Has("--output-prefix")) {
    PrintError("muster data preprocess needs --output-prefix");
    return kExitUsage;
  }
  const absl::StatusOr<TextFormat> format = ParseTextFormat(invocation.Get("--format", "jsonl"));
  std::optional<std::string> model;
  if (invocation.Has("--tokenizer-model")) model = invocation.Get("--tokenizer-model");
  const auto tokenizer = MakeTokenizer(invocation.Get("--tokenizer-type", "byte"), model);
  for (const absl::Status& status : {format.status(), tokenizer.status()}) {
    if (status.ok()) continue;
    PrintError(status.message());
    return kExitUsage;
  }
  const bool terminal = isatty(STDERR_FILENO) == 1;
  PreprocessOptions options{.inputs = invocation.arguments,
                            .format = *format,
                            .json_key = invocation.Get("--json-key", "text"),
                            .output_prefix = invocation.Get("--output-prefix"),
                            .append_eod = !invocation.Has("--no-append-eod")};
  options.progress = [&](const PreprocessProgress& progress) {
    if (!terminal) return;
    const double share =
        progress.bytes_total > 0 ? 100.0 * progress.bytes_read / progress.bytes_total : 100.0;
    std::cerr << absl::StrFormat("\r%5.1f %%  %s documents  %s tokens\x1b[K", share,
                                 FormatCount(progress.num_documents),
                                 FormatCount(progress.num_tokens));
  };
  const absl::StatusOr<PreprocessSummary> summary = Preprocess(options, **tokenizer);
  if (terminal) std::cerr << "\r\x1b[K";
  if (!summary.ok()) {
    PrintError(summary.status().message());
    return kExitUsage;
  }
  if (invocation.Has("--json")) {
    PrintJson({{"output_prefix", summary->output_prefix},
               {"num_documents", summary->num_documents},
               {"num_empty_documents", summary->num_empty_documents},
               {"num_tokens", summary->num_tokens},
               {"input_bytes", summary->input_bytes},
               {"output_bytes", summary->output_bytes}});
  } else {
    std::cout << absl::StrCat(
        summary->num_documents, " documents, ", summary->num_tokens, " tokens in ",
        summary->output_prefix, ".bin and .idx",
        summary->num_empty_documents > 0
            ? absl::StrCat(" (", summary->num_empty_documents, " empty documents left out)")
            : "",
        "\n");
  }
  return kExitDone;
}

}  // namespace

Command DataPreprocessCommand() {
  return {.name = "data preprocess",
          .arguments = "FILE... --output-prefix PREFIX",
          .help = "make a .bin/.idx dataset from text",
          .details =
              "Tokenizes text files into one indexed dataset, in the format of Megatron-LM: "
              "PREFIX.bin and PREFIX.idx. Shows its progress on a terminal.",
          .min_arguments = 1,
          .max_arguments = 1'000'000,
          .options = {{.name = "--output-prefix",
                       .value = "PREFIX",
                       .help = "writes PREFIX.bin and PREFIX.idx"},
                      {.name = "--format",
                       .value = "FORMAT",
                       .help = "jsonl (default), paragraphs (blank lines part documents) or file "
                               "(one document a file)"},
                      {.name = "--json-key",
                       .value = "KEY",
                       .help = "of the text in a JSON line (default text)"},
                      {.name = "--tokenizer-type",
                       .value = "TYPE",
                       .help = "byte (default), huggingface or sentencepiece"},
                      {.name = "--tokenizer-model", .value = "FILE", .help = "of that tokenizer"},
                      {.name = "--no-append-eod",
                       .help = "no end-of-document token after each document"},
                      JsonOption()},
          .examples = {{"muster data preprocess corpus.jsonl --output-prefix data/corpus",
                        "the field \"text\" of each JSON line, byte by byte"},
                       {"muster data preprocess a.txt b.txt --format file --output-prefix data/ab "
                        "--tokenizer-type huggingface --tokenizer-model tokenizer.json",
                        "a document a file, with a tokenizer"}},
          .run = RunPreprocess};
}

}  // namespace muster
