// Tables of rules: what breaks each and the field that the error names.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spec_fixture.h"

namespace muster {

struct Rule {
  const char* rule;
  std::vector<std::string> settings;
  const char* field;  // nullptr: the settings are good
  const char* fragment;
};

inline std::vector<std::string> Join(std::vector<std::string> base,
                                     const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

// Each row's settings come after `base`; exactly one problem, or none, must be found.
inline void ExpectRules(const std::vector<std::string>& base, const std::vector<Rule>& rules) {
  for (const Rule& rule : rules) {
    SCOPED_TRACE(absl::StrCat(rule.rule, ": ", absl::StrJoin(rule.settings, " ")));
    const ParsedSpec parsed = ParseJobSpec(With(Join(base, rule.settings)));
    std::vector<std::string> found;
    for (const SpecProblem& problem : parsed.problems) found.push_back(problem.ToString());
    const std::string all = absl::StrJoin(found, "\n");
    if (rule.field == nullptr) {
      EXPECT_TRUE(parsed.problems.empty()) << all;
      continue;
    }
    ASSERT_EQ(parsed.problems.size(), 1u) << all;
    EXPECT_EQ(parsed.problems[0].field, rule.field);
    EXPECT_THAT(parsed.problems[0].message, ::testing::HasSubstr(rule.fragment));
    const bool is_absent = absl::StartsWith(rule.fragment, "is required") ||
                           absl::StrContains(rule.fragment, "must be set");
    EXPECT_EQ(parsed.problems[0].value.empty(), is_absent);
  }
}

inline std::string Set(const char* field, const std::string& value) {
  return absl::StrCat(field, "=", value);
}
inline std::string Set(const char* field, int64_t value) { return absl::StrCat(field, "=", value); }

}  // namespace muster
