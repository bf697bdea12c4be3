#include "common/spec/supported.h"

#include "common/spec/rule_report.h"

namespace muster {
namespace {

struct Feature {
  const char* field;
  bool (*is_used)(const JobSpec&);
  const char* instead;  // what to do
};

// A row goes when its engine comes.
const Feature kMissing[] = {
    {"data.tokenizer_type", [](const JobSpec& s) { return s.data.tokenizer_type != "byte"; },
     "use byte"},
    {"checkpoint.async_save", [](const JobSpec& s) { return s.checkpoint.async_save; },
     "set it to false"},
};

}  // namespace

std::vector<SpecProblem> UnsupportedFeatures(const JobSpec& spec) {
  RuleReport report(spec, {});
  for (const Feature& feature : kMissing) {
    if (!feature.is_used(spec)) continue;
    report.Add(feature.field,
               std::string("is not supported by this version's trainer; ") + feature.instead);
  }
  return report.Take();
}

}  // namespace muster
