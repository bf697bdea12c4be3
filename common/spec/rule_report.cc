#include "common/spec/rule_report.h"

#include "common/base/check.h"
#include "common/spec/fields.h"
#include "common/spec/json_tree.h"
#include "common/spec/spec_reader.h"

namespace muster {

RuleReport::RuleReport(const JobSpec& spec, std::set<std::string> faulty)
    : spec_(spec), faulty_(std::move(faulty)) {}

bool RuleReport::Good(std::initializer_list<absl::string_view> fields) const {
  for (const absl::string_view field : fields) {
    MUSTER_CHECK_MSG(FindFieldByPath(field) != nullptr, field);
    if (faulty_.count(std::string(field)) != 0) return false;
  }
  return true;
}

void RuleReport::Add(absl::string_view field, std::string message) {
  problems_.push_back({std::string(field), FieldValueText(spec_, field), std::move(message)});
}

std::string FieldValueText(const JobSpec& spec, absl::string_view path) {
  const Field* field = FindFieldByPath(path);
  MUSTER_CHECK_MSG(field != nullptr, path);
  const JsonNode value = FieldToJson(*field, spec);
  return value.kind == JsonNode::Kind::kNull ? "" : ShortJson(value);
}

}  // namespace muster
