#include "common/spec/spec_reader.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/spec/nearest_name.h"

namespace muster {
namespace {

using Kind = JsonNode::Kind;

// Stores one value if it is good; returns what is wrong with it otherwise. One overload for each
// type of FieldRef.
class ValueReader {
 public:
  ValueReader(const Field& field, const JsonNode& node) : field_(field), node_(node) {}

  std::string operator()(bool* out) const {
    if (node_.kind != Kind::kBool) return WrongType(node_);
    *out = node_.boolean;
    return "";
  }
  std::string operator()(int64_t* out) const { return Integer(node_, out); }
  std::string operator()(double* out) const { return Real(node_, out); }
  std::string operator()(std::string* out) const { return Text(node_, out); }

  std::string operator()(std::optional<int64_t>* out) const { return OrNull(out); }
  std::string operator()(std::optional<double>* out) const { return OrNull(out); }
  std::string operator()(std::optional<std::string>* out) const { return OrNull(out); }
  std::string operator()(std::optional<std::vector<int64_t>>* out) const { return OrNull(out); }

  std::string operator()(std::vector<int64_t>* out) const {
    return List(out, [this](const JsonNode& item, int64_t* value) { return Integer(item, value); });
  }
  std::string operator()(std::vector<double>* out) const {
    return List(out, [this](const JsonNode& item, double* value) { return Real(item, value); });
  }

  // A lone string is a list of one; numbers are taken as they stand (weights of a blend).
  std::string operator()(std::vector<std::string>* out) const {
    std::vector<std::string> values;
    const bool is_list = node_.kind == Kind::kArray;
    if (!is_list && node_.kind != Kind::kString) return WrongType(node_);
    if (is_list && node_.items.empty() && field_.rule.one_or_more) return NoItem();
    for (size_t i = 0; i < (is_list ? node_.items.size() : 1); ++i) {
      const JsonNode& item = is_list ? node_.items[i] : node_;
      std::string value = item.text;
      if (item.kind != Kind::kNumber) {
        if (std::string wrong = Text(item, &value); !wrong.empty()) {
          return is_list ? InItem(i, wrong) : wrong;
        }
      }
      values.push_back(std::move(value));
    }
    *out = std::move(values);
    return "";
  }

  std::string operator()(std::map<std::string, std::string>* out) const {
    if (node_.kind != Kind::kObject) return WrongType(node_);
    std::map<std::string, std::string> values;
    for (const JsonMember& member : node_.members) {
      if (member.value.kind != Kind::kString) {
        return absl::StrCat("the value of \"", member.key, "\" must be a string, got ",
                            KindName(member.value.kind));
      }
      if (!values.emplace(member.key, member.value.text).second) {
        return absl::StrCat("the key \"", member.key, "\" is given twice");
      }
    }
    *out = std::move(values);
    return "";
  }

 private:
  template <typename T>
  std::string OrNull(std::optional<T>* out) const {
    if (node_.kind == Kind::kNull) {
      out->reset();
      return "";
    }
    T value{};
    if (std::string wrong = (*this)(&value); !wrong.empty()) return wrong;
    *out = std::move(value);
    return "";
  }

  template <typename T, typename Read>
  std::string List(std::vector<T>* out, const Read& read) const {
    std::vector<T> values;
    T value{};
    if (node_.kind != Kind::kArray) {
      if (!field_.rule.one_or_more) return WrongType(node_);
      if (std::string wrong = read(node_, &value); !wrong.empty()) return wrong;
      *out = {value};
      return "";
    }
    if (node_.items.empty() && field_.rule.one_or_more) return NoItem();
    for (const JsonNode& item : node_.items) {
      if (std::string wrong = read(item, &value); !wrong.empty()) {
        return InItem(values.size(), wrong);
      }
      values.push_back(value);
    }
    *out = std::move(values);
    return "";
  }

  std::string NoItem() const { return absl::StrCat(Expected(), "; got an empty list"); }

  std::string InItem(size_t index, absl::string_view wrong) const {
    return absl::StrCat("item ", index, ": ", wrong);
  }

  std::string Expected() const {
    const std::string rule = RuleText(field_.rule);
    return absl::StrCat("expected ", TypeName(field_), rule.empty() ? "" : ", ", rule);
  }

  std::string WrongType(const JsonNode& node) const {
    std::string message = absl::StrCat(Expected(), "; got ", KindName(node.kind));
    double number = 0;
    const bool reads_as_wanted =
        node.kind == Kind::kString &&
        (absl::SimpleAtod(node.text, &number) || node.text == "true" || node.text == "false");
    if (reads_as_wanted && !absl::StrContains(TypeName(field_), "string")) {
      message += "; write it without quotes";
    }
    return message;
  }

  std::string InRange(double value) const {
    const FieldRule& rule = field_.rule;
    const bool low = rule.min && (rule.min_excluded ? value <= *rule.min : value < *rule.min);
    const bool high = rule.max && value > *rule.max;
    if (!low && !high) return "";
    return absl::StrCat("must be ", RuleText(rule));
  }

  std::string Integer(const JsonNode& node, int64_t* out) const {
    if (node.kind == Kind::kBadNumber) return NotFinite();
    if (node.kind != Kind::kNumber) return WrongType(node);
    if (std::trunc(node.number) != node.number) {
      return absl::StrCat(Expected(), "; got a fraction");
    }
    if (std::string wrong = InRange(node.number); !wrong.empty()) return wrong;
    if (!node.is_integer) return "is beyond 64-bit integers";
    *out = node.integer;
    return "";
  }

  std::string Real(const JsonNode& node, double* out) const {
    if (node.kind == Kind::kBadNumber) return NotFinite();
    if (node.kind != Kind::kNumber) return WrongType(node);
    if (std::string wrong = InRange(node.number); !wrong.empty()) return wrong;
    *out = node.number;
    return "";
  }

  std::string NotFinite() const {
    return absl::StrCat(Expected(), "; got NaN, infinity or a number beyond double precision");
  }

  std::string Text(const JsonNode& node, std::string* out) const {
    constexpr size_t kLongest = 4096;
    if (node.kind != Kind::kString) return WrongType(node);
    if (node.text.empty()) return "must not be empty";
    if (node.text.size() > kLongest) return absl::StrCat("is longer than ", kLongest, " bytes");
    for (const char c : node.text) {
      if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
        return "must not contain control characters";
      }
    }
    const std::vector<const char*>& one_of = field_.rule.one_of;
    if (!one_of.empty()) {
      const std::vector<std::string> names(one_of.begin(), one_of.end());
      if (std::find(names.begin(), names.end(), node.text) == names.end()) {
        const std::string nearest = NearestName(node.text, names);
        return absl::StrCat("must be ", RuleText(field_.rule),
                            nearest.empty() ? "" : "; did you mean ", nearest,
                            nearest.empty() ? "" : "?");
      }
    }
    *out = node.text;
    return "";
  }

  const Field& field_;
  const JsonNode& node_;
};

class SpecReader {
 public:
  ReadResult Read(const JsonNode& root) {
    std::set<std::string> seen;
    const Section& document = *FindSection("");
    for (const JsonMember& member : root.members) {
      if (!seen.insert(member.key).second) {
        Problem(member.key, member.value, "is given twice; keep one");
        continue;
      }
      if (const Field* field = FindField(document, member.key)) {
        ReadField(document, *field, member.value);
      } else if (const Section* section = member.key.empty() ? nullptr : FindSection(member.key)) {
        ReadSection(*section, member.value);
      } else {
        Problem(member.key, member.value, UnknownTopLevel(member.key));
      }
    }
    // Sections that the document lacks altogether.
    for (const Section& section : Sections()) {
      if (seen.count(section.name) == 0) ReportMissing(section);
    }
    return std::move(result_);
  }

 private:
  void Problem(std::string field, const JsonNode& value, std::string message) {
    result_.problems.push_back({std::move(field), ShortJson(value), std::move(message)});
  }

  void ReadSection(const Section& section, const JsonNode& node) {
    if (node.kind != Kind::kObject) {
      Problem(
          section.name, node,
          absl::StrCat("expected an object with the section's fields; got ", KindName(node.kind)));
      for (const Field& field : section.fields) {
        result_.faulty.insert(FieldPath(section, field.name));
      }
      return;
    }
    std::set<std::string> seen;
    for (const JsonMember& member : node.members) {
      const std::string path = FieldPath(section, member.key);
      if (!seen.insert(member.key).second) {
        Problem(path, member.value, "is given twice; keep one");
        result_.faulty.insert(path);
        continue;
      }
      if (const Field* field = FindField(section, member.key)) {
        ReadField(section, *field, member.value);
      } else {
        Problem(path, member.value, UnknownField(section, member.key));
      }
    }
    ReportMissing(section);
  }

  void ReadField(const Section& section, const Field& field, const JsonNode& value) {
    const std::string path = FieldPath(section, field.name);
    result_.given.insert(path);
    std::string wrong = std::visit(ValueReader(field, value), field.get(result_.spec));
    if (wrong.empty()) return;
    Problem(path, value, std::move(wrong));
    result_.faulty.insert(path);
  }

  void ReportMissing(const Section& section) {
    for (const Field& field : section.fields) {
      const std::string path = FieldPath(section, field.name);
      if (!field.rule.required || result_.given.count(path) != 0) continue;
      const std::string rule = RuleText(field.rule);
      result_.problems.push_back(
          {path, "",
           absl::StrCat("is required: ", TypeName(field), rule.empty() ? "" : ", ", rule)});
      result_.faulty.insert(path);
    }
  }

  // Where a field of that name is, other than in `here`: "parallel", "" when nowhere.
  static const Section* OtherHome(absl::string_view name, const Section* here) {
    for (const Section& section : Sections()) {
      if (&section != here && FindField(section, name) != nullptr) return &section;
    }
    return nullptr;
  }

  static std::string UnknownField(const Section& section, const std::string& name) {
    if (const Section* home = OtherHome(name, &section)) {
      return absl::StrCat("unknown field of section ", section.name, "; ",
                          home->name[0] == '\0'
                              ? "it belongs outside the sections: write "
                              : absl::StrCat("it belongs to section ", home->name, ": write "),
                          FieldPath(*home, name));
    }
    std::vector<std::string> names;
    for (const Field& field : section.fields) names.push_back(field.name);
    std::string nearest = NearestName(name, names);
    if (nearest.empty()) nearest = NearestPath(name);
    return absl::StrCat("unknown field of section ", section.name,
                        nearest.empty() ? "; docs/spec.md lists all fields"
                                        : absl::StrCat("; did you mean ", nearest, "?"));
  }

  static std::string UnknownTopLevel(const std::string& name) {
    if (const Section* home = OtherHome(name, nullptr)) {
      return absl::StrCat("belongs to section ", home->name, ": write ", FieldPath(*home, name));
    }
    std::vector<std::string> names;
    for (const Section& section : Sections()) {
      if (section.name[0] != '\0') names.push_back(section.name);
    }
    for (const Field& field : FindSection("")->fields) names.push_back(field.name);
    std::string nearest = NearestName(name, names);
    if (nearest.empty()) nearest = NearestPath(name);
    return absl::StrCat("unknown section or field",
                        nearest.empty() ? "; docs/spec.md lists all of them"
                                        : absl::StrCat("; did you mean ", nearest, "?"));
  }

  // The nearest field of any section, as a path.
  static std::string NearestPath(const std::string& name) {
    std::vector<std::string> names, paths;
    for (const Section& section : Sections()) {
      for (const Field& field : section.fields) {
        names.push_back(field.name);
        paths.push_back(FieldPath(section, field.name));
      }
    }
    const std::string nearest = NearestName(name, names);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == nearest) return paths[i];
    }
    return "";
  }

  ReadResult result_;
};

struct ToJson {
  JsonNode operator()(const bool* v) const { return JsonNode::Bool(*v); }
  JsonNode operator()(const int64_t* v) const { return JsonNode::Integer(*v); }
  JsonNode operator()(const double* v) const { return JsonNode::Number(*v); }
  JsonNode operator()(const std::string* v) const { return JsonNode::String(*v); }
  template <typename T>
  JsonNode operator()(const std::optional<T>* v) const {
    return v->has_value() ? (*this)(&**v) : JsonNode();
  }
  template <typename T>
  JsonNode operator()(const std::vector<T>* v) const {
    JsonNode list = JsonNode::Array();
    for (const T& item : *v) list.items.push_back((*this)(&item));
    return list;
  }
  JsonNode operator()(const std::map<std::string, std::string>* v) const {
    JsonNode object = JsonNode::Object();
    for (const auto& [key, value] : *v) object.members.push_back({key, JsonNode::String(value)});
    return object;
  }
};

}  // namespace

ReadResult ReadSpec(const JsonNode& root) { return SpecReader().Read(root); }

JsonNode FieldToJson(const Field& field, const JobSpec& spec) {
  // The table's getters serve reading and writing; nothing is changed here.
  JsonNode node = std::visit(ToJson{}, field.get(const_cast<JobSpec&>(spec)));
  // As it is usually written: a list of one is a value.
  if (field.rule.one_or_more && node.items.size() == 1) return JsonNode(node.items.front());
  return node;
}

}  // namespace muster
