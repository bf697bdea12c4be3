#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/dataset/indexed_dataset.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

std::string WithoutExtension(std::string path) {
  for (const char* extension : {".idx", ".bin"}) {
    if (path.size() > 4 && path.substr(path.size() - 4) == extension) {
      path.resize(path.size() - 4);
      break;
    }
  }
  return path;
}

int Inspect(const Invocation& invocation) {
  const std::string prefix = WithoutExtension(invocation.arguments[0]);
  const auto dataset = IndexedDataset::Open(prefix);
  if (!dataset.ok()) {
    PrintError(dataset.status().message());
    return kExitUsage;
  }
  const IndexedDataset& data = **dataset;
  int64_t shortest = 0, longest = 0;
  for (int64_t i = 0; i < data.num_sequences(); ++i) {
    const int64_t length = data.sequence_length(i);
    shortest = i == 0 ? length : std::min(shortest, length);
    longest = std::max(longest, length);
  }
  nlohmann::ordered_json json = {{"prefix", prefix},
                                 {"num_documents", data.num_documents()},
                                 {"num_sequences", data.num_sequences()},
                                 {"num_tokens", data.num_tokens()},
                                 {"token_type", std::string(TokenTypeName(data.token_type()))},
                                 {"shortest_sequence", shortest},
                                 {"longest_sequence", longest}};
  if (invocation.Has("--document")) {
    const absl::StatusOr<int64_t> document = invocation.GetInt("--document", 0, 0);
    if (!document.ok() || *document >= data.num_documents()) {
      PrintError(absl::StrCat("--document=", invocation.Get("--document"), ": must be 0 to ",
                              data.num_documents() - 1));
      return kExitUsage;
    }
    std::vector<int64_t> tokens;
    for (int64_t i = data.document_boundary(*document); i < data.document_boundary(*document + 1);
         ++i) {
      const std::vector<int64_t> sequence = data.Sequence(i);
      tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    }
    json["document"] = {{"index", *document}, {"tokens", tokens}};
    if (invocation.Has("--tokenizer-type")) {
      std::optional<std::string> model;
      if (invocation.Has("--tokenizer-model")) model = invocation.Get("--tokenizer-model");
      const auto tokenizer = MakeTokenizer(invocation.Get("--tokenizer-type"), model);
      if (!tokenizer.ok()) {
        PrintError(tokenizer.status().message());
        return kExitUsage;
      }
      json["document"]["text"] = (*tokenizer)->Decode(tokens);
    }
  }
  if (invocation.Has("--json")) {
    PrintJson(json);
    return kExitDone;
  }
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) std::cout << absl::StrFormat("%-18s %s\n", name, value.dump());
  }
  if (json.contains("document")) {
    const auto& document = json["document"];
    if (document.contains("text")) {
      std::cout << "\n" << document["text"].get<std::string>() << "\n";
    } else {
      std::cout << "\n" << document["tokens"].dump() << "\n";
    }
  }
  return kExitDone;
}

}  // namespace

Command DataInspectCommand() {
  return {.name = "data inspect",
          .arguments = "PREFIX",
          .help = "what is in a .bin/.idx dataset",
          .details =
              "Prints documents, sequences, tokens and token type of PREFIX.bin and PREFIX.idx "
              "and, if asked, one document.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--document", .value = "N", .help = "print its tokens"},
                      {.name = "--tokenizer-type",
                       .value = "TYPE",
                       .help = "decode them to text: byte, huggingface or sentencepiece"},
                      {.name = "--tokenizer-model", .value = "FILE", .help = "of that tokenizer"},
                      JsonOption()},
          .examples = {{"muster data inspect data/corpus --document 0 --tokenizer-type byte",
                        "the text of the first document"}},
          .run = Inspect};
}

}  // namespace muster
