// JSON <-> JobSpec, driven by the table in fields.h. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/job_spec.h"

namespace muster {

// One fault of a spec: "model.hidden_size=-3: must be at least 1".
struct SpecProblem {
  std::string field;  // "section.field", or "" for the document as a whole
  std::string value;  // as written; "" when absent
  std::string
      message;  // the rule and what would be right, with the nearest known name for an unknown one
  std::string ToString() const;
};

struct ParsedSpec {
  JobSpec spec;
  std::vector<SpecProblem>
      problems;  // empty: the spec is good. All faults at once, in document order.
};

// Parses and checks everything that needs no file system: syntax (duplicate keys, truncation,
// depth, UTF-8, size), names, types, ranges, and the rules across fields (validate.h). Never
// throws.
ParsedSpec ParseJobSpec(absl::string_view json_text);

// "section.field=value" as of --set; the value is JSON, or a bare string. Applied to the text
// before parsing.
absl::StatusOr<std::string> ApplySetOptions(absl::string_view json_text,
                                            const std::vector<std::string>& settings);

// All fields, defaults included; ParseJobSpec(ToJson(s)) gives s back.
std::string JobSpecToJson(const JobSpec& spec);

// docs/spec.md, generated from the table.
std::string SpecReference();

// Sizes that follow from a good spec: what was left to default, resolved (Megatron's
// validate_args).
struct ResolvedSpec {
  int64_t data_parallel_size = 1;
  int64_t global_batch_size = 1;
  int64_t ffn_hidden_size = 0, kv_channels = 0, num_query_groups = 0, max_position_embeddings = 0;
  int64_t vocab_size = 0;         // the tokenizer's, or model.vocab_size
  int64_t padded_vocab_size = 0;  // reference 2.4
  int64_t train_iters = 0, train_samples = 0;
  bool grads_in_fp32 =
      false;          // kept and reduced so: asked for, or bf16 without grad_reduce_in_bf16
  std::string split;  // data.split, or its default
};
// tokenizer_vocab_size: used where model.vocab_size is not set (byte: 256 tokens + 1 end of
// document).
ResolvedSpec Resolve(const JobSpec& spec, int64_t tokenizer_vocab_size);

}  // namespace muster
