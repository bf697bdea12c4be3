// JSON tree -> JobSpec by the table of fields.h: names, types and single-value rules. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/spec/fields.h"
#include "common/spec/json_tree.h"
#include "common/spec/spec_json.h"

namespace muster {

struct ReadResult {
  JobSpec spec;                       // a faulty field keeps its default
  std::vector<SpecProblem> problems;  // in document order; what is missing after its section
  std::set<std::string> given;        // "section.field" of every known field in the document
  std::set<std::string> faulty;       // those of them that have a problem, and missing ones
};

ReadResult ReadSpec(const JsonNode& root);

// The value as JSON; null for an optional that is not set.
JsonNode FieldToJson(const Field& field, const JobSpec& spec);

}  // namespace muster
