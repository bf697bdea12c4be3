// Collects broken rules across fields. A rule is skipped when a field that it reads is at fault
// already, so that one slip is not reported twice. Pure.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

class RuleReport {
 public:
  RuleReport(const JobSpec& spec, std::set<std::string> faulty);

  // Whether none of these fields ("section.field") is at fault by itself.
  bool Good(std::initializer_list<absl::string_view> fields) const;
  // The problem names `field` and the value that it has in the spec.
  void Add(absl::string_view field, std::string message);

  std::vector<SpecProblem> Take() { return std::move(problems_); }

 private:
  const JobSpec& spec_;
  const std::set<std::string> faulty_;
  std::vector<SpecProblem> problems_;
};

// "section.field" as JSON, for messages; the field must exist.
std::string FieldValueText(const JobSpec& spec, absl::string_view path);

}  // namespace muster
