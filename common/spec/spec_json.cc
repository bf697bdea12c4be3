#include "common/spec/spec_json.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/spec/fields.h"
#include "common/spec/json_tree.h"
#include "common/spec/spec_reader.h"
#include "common/spec/validate.h"

namespace muster {
namespace {

// The value of a --set option as a node: JSON where it is JSON, else the words themselves. A field
// that holds strings takes `1` as the string "1".
JsonNode SettingValue(const std::string& path, absl::string_view text) {
  JsonNode words = JsonNode::String(text);
  JsonDocument parsed = ParseJson(text);
  if (!parsed.error.empty()) return words;
  const bool is_scalar = parsed.root.kind == JsonNode::Kind::kNumber ||
                         parsed.root.kind == JsonNode::Kind::kBadNumber ||
                         parsed.root.kind == JsonNode::Kind::kBool;
  const Field* field = FindFieldByPath(path);
  const bool wants_text = field != nullptr && TypeName(*field) == "a string";
  const bool is_variable = absl::StartsWith(path, "resources.env.");
  return is_scalar && (wants_text || is_variable) ? words : std::move(parsed.root);
}

absl::Status ApplySetting(absl::string_view setting, JsonNode* root) {
  const size_t equals = setting.find('=');
  const std::string path(setting.substr(0, equals));
  if (equals == absl::string_view::npos || path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--set ", setting, ": expected section.field=value, such as training.train_iters=100"));
  }
  const std::vector<std::string> keys = absl::StrSplit(path, '.');
  constexpr size_t kMaxKeys = 3;  // resources.env.NAME
  JsonNode* node = root;
  for (const std::string& key : keys) {
    if (key.empty() || keys.size() > kMaxKeys) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", setting, ": \"", path, "\" is not of the form section.field"));
    }
    if (node->kind != JsonNode::Kind::kObject) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", setting, ": cannot set ", path, " inside ", KindName(node->kind)));
    }
    JsonNode* next = node->Find(key);
    if (next == nullptr) {
      node->members.push_back({key, JsonNode::Object()});
      next = &node->members.back().value;
    }
    node = next;
  }
  *node = SettingValue(path, setting.substr(equals + 1));
  return absl::OkStatus();
}

}  // namespace

std::string SpecProblem::ToString() const {
  if (field.empty()) return message;
  if (value.empty()) return absl::StrCat(field, ": ", message);
  return absl::StrCat(field, "=", value, ": ", message);
}

ParsedSpec ParseJobSpec(absl::string_view json_text) {
  ParsedSpec parsed;
  const JsonDocument document = ParseJson(json_text);
  if (!document.error.empty()) {
    parsed.problems.push_back({"", "", document.error});
    return parsed;
  }
  if (document.root.kind != JsonNode::Kind::kObject) {
    parsed.problems.push_back(
        {"", ShortJson(document.root),
         absl::StrCat("a job spec is a JSON object; got ", KindName(document.root.kind))});
    return parsed;
  }
  ReadResult read = ReadSpec(document.root);
  parsed.spec = std::move(read.spec);
  parsed.problems = std::move(read.problems);
  if (parsed.spec.resources.device == "cpu" &&
      read.given.count("parallel.distributed_backend") == 0) {
    parsed.spec.parallel.distributed_backend = "gloo";
  }
  for (SpecProblem& problem : Validate(parsed.spec, read.faulty)) {
    parsed.problems.push_back(std::move(problem));
  }
  return parsed;
}

absl::StatusOr<std::string> ApplySetOptions(absl::string_view json_text,
                                            const std::vector<std::string>& settings) {
  JsonDocument document = ParseJson(json_text);
  if (!document.error.empty()) return absl::InvalidArgumentError(document.error);
  for (const std::string& setting : settings) {
    RETURN_IF_ERROR(ApplySetting(setting, &document.root));
  }
  return WriteJson(document.root);
}

std::string JobSpecToJson(const JobSpec& spec) {
  JsonNode root = JsonNode::Object();
  for (const Section& section : Sections()) {
    JsonNode fields = JsonNode::Object();
    for (const Field& field : section.fields) {
      fields.members.push_back({field.name, FieldToJson(field, spec)});
    }
    if (section.name[0] == '\0') {
      root = std::move(fields);
    } else {
      root.members.push_back({section.name, std::move(fields)});
    }
  }
  return WriteJson(root) + "\n";
}

}  // namespace muster
