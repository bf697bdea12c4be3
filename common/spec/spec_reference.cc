// SpecReference: docs/spec.md out of the table of fields.h.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/spec/fields.h"
#include "common/spec/json_tree.h"
#include "common/spec/spec_json.h"
#include "common/spec/spec_reader.h"

namespace muster {
namespace {

// A cell of a Markdown table.
std::string Cell(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"*", "\\*"}});
}

std::string DefaultText(const Field& field) {
  if (field.rule.required) return "**required**";
  if (field.derived_default != nullptr) return Cell(field.derived_default);
  if (IsOptional(field)) return "not set";
  return absl::StrCat("`", WriteJson(FieldToJson(field, JobSpec())), "`");
}

std::string TypeText(const Field& field) {
  std::string text = TypeName(field);
  const std::string rule = RuleText(field.rule);
  if (!rule.empty()) absl::StrAppend(&text, "; ", Cell(rule));
  return text;
}

}  // namespace

std::string SpecReference() {
  std::string out =
      "# The job spec\n"
      "\n"
      "Generated from the table in common/spec; run the tests of common/spec with\n"
      "`MUSTER_UPDATE_GOLDENS=1` after changing it.\n"
      "\n"
      "A job spec is one JSON object (UTF-8, at most 1 MiB). Names and meanings follow\n"
      "Megatron-LM's arguments in snake_case. `null` leaves an optional field unset. The command\n"
      "line's `--set section.field=value` overrides a field, and `resources.env.NAME=value` a\n"
      "variable. A bad spec is refused with all of its faults at once, and nothing starts.\n";
  for (const Section& section : Sections()) {
    const bool is_document = section.name[0] == '\0';
    absl::StrAppend(&out, "\n## ", is_document ? "Document" : section.name, "\n\n", section.help,
                    "\n\n| field | type and rule | unit | default | meaning |\n",
                    "|---|---|---|---|---|\n");
    for (const Field& field : section.fields) {
      absl::StrAppend(&out, "| `", field.name, "` | ", TypeText(field), " | ", field.unit, " | ",
                      DefaultText(field), " | ", Cell(field.help), " |\n");
    }
  }
  return out;
}

}  // namespace muster
