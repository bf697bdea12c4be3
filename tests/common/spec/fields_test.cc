// The table against job_spec.h, docs/spec.md, and JSON both ways.
#include "common/spec/fields.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spec_fixture.h"

namespace muster {
namespace {

// The text without comments, string literals and template arguments, which hold commas of their
// own.
std::string DeclarationsOnly(const std::string& text) {
  std::string plain;
  int depth = 0;  // of template arguments
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size() - 1);
    if (text[i] == '"') i = text.find('"', i + 1);
    depth += (text[i] == '<' ? 1 : 0) - (text[i] == '>' ? 1 : 0);
    const bool is_bracket = text[i] == '<' || text[i] == '>' || text[i] == '"';
    if (depth == 0) plain += is_bracket ? ' ' : text[i];
  }
  return plain;
}

// Names of the members declared in `struct name { ... };` of job_spec.h.
std::set<std::string> MembersOf(const std::string& header, const std::string& name) {
  const size_t begin = header.find("struct " + name + " {");
  const size_t end = header.find("\n};", begin);
  EXPECT_NE(end, std::string::npos) << name;
  const std::string body = DeclarationsOnly(header.substr(begin, end + 1 - begin));
  std::set<std::string> members;
  for (const absl::string_view declarator :
       absl::StrSplit(body.substr(body.find('{') + 1), absl::ByAnyChar(";,"))) {
    const std::vector<std::string> words = absl::StrSplit(
        declarator.substr(0, declarator.find('=')), absl::ByAnyChar(" \n"), absl::SkipEmpty());
    if (!words.empty()) members.insert(words.back());
  }
  return members;
}

TEST(FieldsTest, EveryMemberOfTheSpecHasARow) {
  const std::string header = ReadFile(MUSTER_SOURCE_DIR "/common/spec/job_spec.h");
  for (const Section& section : Sections()) {
    SCOPED_TRACE(section.name);
    std::string name = section.name[0] == '\0' ? "Job" : section.name;
    name[0] = static_cast<char>(std::toupper(name[0]));
    std::set<std::string> rows;
    for (const Field& field : section.fields) EXPECT_TRUE(rows.insert(field.name).second);
    std::set<std::string> members = MembersOf(header, name + "Spec");
    if (section.name[0] == '\0') {
      for (const Section& other : Sections()) members.erase(other.name);
    }
    EXPECT_EQ(rows, members);
  }
}

TEST(FieldsTest, EveryRowIsExplained) {
  for (const Section& section : Sections()) {
    for (const Field& field : section.fields) {
      SCOPED_TRACE(FieldPath(section, field.name));
      const std::string help = field.help;
      ASSERT_FALSE(help.empty());
      EXPECT_EQ(help.back(), '.');
      EXPECT_EQ(FindFieldByPath(FieldPath(section, field.name)), &field);
      if (IsOptional(field)) {
        EXPECT_NE(field.derived_default, nullptr);
      }
    }
  }
}

// Some value that the rule allows and that differs from the default.
struct OtherValue {
  const FieldRule& rule;
  std::string Number(double now) const {
    for (const double candidate : {now + 1, now / 2, now - 1, 0.25, 1000.0}) {
      const bool low =
          rule.min && (rule.min_excluded ? candidate <= *rule.min : candidate < *rule.min);
      if (candidate != now && !low && !(rule.max && candidate > *rule.max)) {
        return absl::StrCat(candidate);
      }
    }
    return "";
  }
  std::string Text(const std::string& now) const {
    for (const char* name : rule.one_of) {
      if (name != now) return absl::StrCat("\"", name, "\"");
    }
    return absl::StrCat("\"", now, "x\"");
  }
  std::string operator()(const bool* v) const { return *v ? "false" : "true"; }
  std::string operator()(const int64_t* v) const { return Number(static_cast<double>(*v)); }
  std::string operator()(const double* v) const { return Number(*v); }
  std::string operator()(const std::string* v) const { return Text(*v); }
  std::string operator()(const std::optional<int64_t>*) const { return Number(6); }
  std::string operator()(const std::optional<double>*) const { return Number(0.125); }
  std::string operator()(const std::optional<std::string>*) const { return Text(""); }
  std::string operator()(const std::vector<std::string>*) const {
    if (rule.one_of.empty()) return "[\"0.5\", \"a\"]";
    return absl::StrCat("[\"", rule.one_of[1], "\", \"", rule.one_of[0], "\"]");
  }
  std::string operator()(const std::vector<double>*) const { return "[0.5, 0.25]"; }
  std::string operator()(const std::vector<int64_t>*) const { return "[3, 4]"; }
  std::string operator()(const std::optional<std::vector<int64_t>>*) const { return "[3, 4, 5]"; }
  std::string operator()(const std::map<std::string, std::string>*) const {
    return "{\"A\": \"1\"}";
  }
};

int DifferentLines(const std::string& a, const std::string& b) {
  const std::set<std::string> lines_a = absl::StrSplit(a, '\n'), lines_b = absl::StrSplit(b, '\n');
  int different = 0;
  for (const std::string& line : lines_b) different += lines_a.count(line) == 0 ? 1 : 0;
  return different;
}

TEST(FieldsTest, EveryFieldSurvivesTheWayThroughJson) {
  const std::string before = JobSpecToJson(ParseJobSpec(GoodSpec()).spec);
  for (const Section& section : Sections()) {
    for (const Field& field : section.fields) {
      const std::string path = FieldPath(section, field.name);
      SCOPED_TRACE(path);
      JobSpec now = ParseJobSpec(GoodSpec()).spec;
      const std::string value = std::visit(OtherValue{field.rule}, field.get(now));
      if (field.rule.one_of.size() == 1) continue;  // nothing but the default is allowed
      ASSERT_NE(value, "");
      // Rules across fields may object; the value itself must not.
      const ParsedSpec parsed = ParseJobSpec(With({absl::StrCat(path, "=", value)}));
      for (const SpecProblem& problem : parsed.problems) {
        EXPECT_EQ(problem.message.find("expected"), std::string::npos) << problem.ToString();
      }
      const std::string after = JobSpecToJson(parsed.spec);
      const int changed = DifferentLines(before, after);
      const bool moves_backend = path == "resources.device";  // gloo is the default on cpu only
      EXPECT_GE(changed, 1) << value;
      EXPECT_LE(changed, std::string(field.name) == "env" ? 3 : moves_backend ? 2 : 1) << value;
      EXPECT_EQ(JobSpecToJson(ParseJobSpec(after).spec), after);
    }
  }
}

TEST(FieldsTest, TheWrittenDefaultsAreGoodAgain) {
  const ParsedSpec good = ParseJobSpec(GoodSpec());
  const ParsedSpec again = ParseJobSpec(JobSpecToJson(good.spec));
  for (const SpecProblem& problem : again.problems) ADD_FAILURE() << problem.ToString();
  EXPECT_EQ(JobSpecToJson(again.spec), JobSpecToJson(good.spec));
}

TEST(FieldsTest, DocsSpecMdIsTheTable) {
  const std::string path = MUSTER_SOURCE_DIR "/docs/spec.md";
  if (std::getenv("MUSTER_UPDATE_GOLDENS") != nullptr) std::ofstream(path) << SpecReference();
  EXPECT_EQ(ReadFile(path), SpecReference())
      << "run this test with MUSTER_UPDATE_GOLDENS=1 to write docs/spec.md anew";
}

}  // namespace
}  // namespace muster
