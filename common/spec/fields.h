// The table of every setting: name, member, rule, unit, help. It drives JSON both ways, the errors
// and docs/spec.md, so a new setting is a member of job_spec.h and one row here (a test compares
// the two). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/spec/job_spec.h"

namespace muster {

// A setting inside one JobSpec. What may be left out and then derived is an optional.
using FieldRef =
    std::variant<bool*, int64_t*, double*, std::string*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*,
                 std::vector<int64_t>*, std::vector<double>*, std::optional<std::vector<int64_t>>*,
                 std::map<std::string, std::string>*>;

// What one value must satisfy by itself; rules across fields are in validate.h. For a list, min and
// max hold for each item.
struct FieldRule {
  bool required = false;
  std::optional<double> min, max;
  bool min_excluded = false;        // "greater than min" instead of "at least min"
  std::vector<const char*> one_of;  // empty: any string
  bool one_or_more = false;  // of a list: a lone value is a list of one, and there must be one
};

FieldRule Anything();
FieldRule AtLeast(double min);
FieldRule Above(double min);
FieldRule Between(double min, double max);  // both included
FieldRule AboveUpTo(double min, double max);
FieldRule OneOf(std::vector<const char*> names);
FieldRule Required(FieldRule rule);
FieldRule OneOrMore(FieldRule rule);

struct Field {
  const char* name;
  FieldRef (*get)(JobSpec&);
  FieldRule rule;
  const char* unit;  // "" where there is none
  const char* help;
  const char* derived_default = nullptr;  // in words, for a value that follows from others
};

struct Section {
  const char* name;  // "" for the fields of the document itself
  const char* help;
  std::vector<Field> fields;
};

// In the order of job_spec.h; the document's own fields first.
const std::vector<Section>& Sections();

// nullptr when there is none.
const Section* FindSection(absl::string_view name);
const Field* FindField(const Section& section, absl::string_view name);
// By "section.field", or a bare name for the document's own fields.
const Field* FindFieldByPath(absl::string_view path);
std::string FieldPath(const Section& section, absl::string_view field_name);

// "a whole number", "a list of strings", ...: what the JSON value has to be.
std::string TypeName(const Field& field);
bool IsOptional(const Field& field);
// "at least 1", "one of cpu, cuda", or "" when the type says it all.
std::string RuleText(const FieldRule& rule);

// The tables, a file for each group of sections.
Section DocumentFields();
Section ModelFields();
Section ParallelFields();
Section DataFields();
Section TrainingFields();
Section OptimizerFields();
Section ScheduleFields();
Section EvaluationFields();
Section CheckpointFields();
Section RerunFields();
Section RecoveryFields();
Section ResourcesFields();

// Upper bounds that keep every product of sizes inside int64.
inline constexpr double kMaxSize = 1e7;    // layers, hidden sizes, ranks, batch sizes
inline constexpr double kMaxCount = 1e11;  // iterations, intervals, elements
inline constexpr double kMaxSamples = 1e17;

}  // namespace muster

// The name and the member cannot disagree.
#define MUSTER_FIELD(section, member) \
#member, [](JobSpec & s) -> FieldRef { return &s.section.member; }
