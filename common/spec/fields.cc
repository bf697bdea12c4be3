#include "common/spec/fields.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

std::string BoundText(double bound) {
  return bound == static_cast<double>(static_cast<int64_t>(bound))
             ? absl::StrCat(static_cast<int64_t>(bound))
             : absl::StrFormat("%g", bound);
}

struct Describe {
  bool one_or_more = false;
  const char* operator()(const bool*) const { return "true or false"; }
  const char* operator()(const int64_t*) const { return "a whole number"; }
  const char* operator()(const double*) const { return "a number"; }
  const char* operator()(const std::string*) const { return "a string"; }
  const char* operator()(const std::optional<int64_t>*) const { return "a whole number"; }
  const char* operator()(const std::optional<double>*) const { return "a number"; }
  const char* operator()(const std::optional<std::string>*) const { return "a string"; }
  const char* operator()(const std::vector<std::string>*) const {
    return "a string or a list of strings";
  }
  const char* operator()(const std::vector<int64_t>*) const {
    return one_or_more ? "a whole number or a list of whole numbers" : "a list of whole numbers";
  }
  const char* operator()(const std::vector<double>*) const {
    return one_or_more ? "a number or a list of numbers" : "a list of numbers";
  }
  const char* operator()(const std::optional<std::vector<int64_t>>*) const {
    return "a list of whole numbers";
  }
  const char* operator()(const std::map<std::string, std::string>*) const {
    return "an object of strings";
  }
};

}  // namespace

FieldRule Anything() { return {}; }
FieldRule AtLeast(double min) { return {.min = min}; }
FieldRule Above(double min) { return {.min = min, .min_excluded = true}; }
FieldRule Between(double min, double max) { return {.min = min, .max = max}; }
FieldRule AboveUpTo(double min, double max) {
  return {.min = min, .max = max, .min_excluded = true};
}
FieldRule OneOf(std::vector<const char*> names) { return {.one_of = std::move(names)}; }
FieldRule Required(FieldRule rule) {
  rule.required = true;
  return rule;
}
FieldRule OneOrMore(FieldRule rule) {
  rule.one_or_more = true;
  return rule;
}

const std::vector<Section>& Sections() {
  static const std::vector<Section>* const kSections = new std::vector<Section>{
      DocumentFields(),   ModelFields(),     ParallelFields(), DataFields(),
      TrainingFields(),   OptimizerFields(), ScheduleFields(), EvaluationFields(),
      CheckpointFields(), RerunFields(),     RecoveryFields(), ResourcesFields()};
  return *kSections;
}

const Section* FindSection(absl::string_view name) {
  for (const Section& section : Sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

const Field* FindField(const Section& section, absl::string_view name) {
  for (const Field& field : section.fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

const Field* FindFieldByPath(absl::string_view path) {
  const size_t dot = path.find('.');
  const bool has_section = dot != absl::string_view::npos;
  const Section* section = FindSection(has_section ? path.substr(0, dot) : "");
  if (section == nullptr) return nullptr;
  return FindField(*section, has_section ? path.substr(dot + 1) : path);
}

std::string FieldPath(const Section& section, absl::string_view field_name) {
  if (section.name[0] == '\0') return std::string(field_name);
  return absl::StrCat(section.name, ".", field_name);
}

std::string TypeName(const Field& field) {
  JobSpec scratch;
  return std::visit(Describe{field.rule.one_or_more}, field.get(scratch));
}

bool IsOptional(const Field& field) {
  JobSpec scratch;
  const FieldRef ref = field.get(scratch);
  return std::holds_alternative<std::optional<int64_t>*>(ref) ||
         std::holds_alternative<std::optional<double>*>(ref) ||
         std::holds_alternative<std::optional<std::string>*>(ref) ||
         std::holds_alternative<std::optional<std::vector<int64_t>>*>(ref);
}

std::string RuleText(const FieldRule& rule) {
  if (!rule.one_of.empty()) return absl::StrCat("one of ", absl::StrJoin(rule.one_of, ", "));
  if (rule.min && rule.max) {
    return rule.min_excluded
               ? absl::StrCat("greater than ", BoundText(*rule.min), " and at most ",
                              BoundText(*rule.max))
               : absl::StrCat("between ", BoundText(*rule.min), " and ", BoundText(*rule.max));
  }
  if (rule.min) {
    return absl::StrCat(rule.min_excluded ? "greater than " : "at least ", BoundText(*rule.min));
  }
  if (rule.max) return absl::StrCat("at most ", BoundText(*rule.max));
  return "";
}

}  // namespace muster
