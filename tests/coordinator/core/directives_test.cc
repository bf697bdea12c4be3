#include "coordinator/core/directives.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(DirectiveLogTest, NumbersHaveNoGaps) {
  DirectiveLog log;
  for (int64_t n = 1; n <= 3; ++n) {
    EXPECT_EQ(log.Append({.kind = Directive::Kind::kEvaluate})->number, n);
  }
  const auto after = log.After(1);
  ASSERT_EQ(after.size(), 2u);
  EXPECT_EQ(after[0].number, 2);
  EXPECT_EQ(after[1].number, 3);
  EXPECT_TRUE(log.After(3).empty());
  EXPECT_TRUE(log.After(99).empty());
}

TEST(DirectiveLogTest, AppliedNeverGoesBackNorPastTheLast) {
  DirectiveLog log;
  ASSERT_TRUE(log.Append({.kind = Directive::Kind::kStop}).ok());
  log.Applied(7);
  EXPECT_EQ(log.applied(), 1);
  log.Applied(0);
  EXPECT_EQ(log.applied(), 1);
}

TEST(DirectiveLogTest, TooManyPendingAreRefusedUntilSomeAreApplied) {
  DirectiveLog log;
  for (int i = 0; i < DirectiveLog::kMaxPending; ++i) {
    ASSERT_TRUE(log.Append({.kind = Directive::Kind::kEvaluate}).ok());
  }
  EXPECT_EQ(log.Append({.kind = Directive::Kind::kEvaluate}).status().code(),
            absl::StatusCode::kResourceExhausted);
  log.Applied(1);
  EXPECT_TRUE(log.Append({.kind = Directive::Kind::kEvaluate}).ok());
}

}  // namespace
}  // namespace muster
