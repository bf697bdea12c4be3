#include "common/base/status.h"

#include <gtest/gtest.h>

#include "common/base/check.h"

namespace muster {
namespace {

absl::Status Twice(absl::StatusOr<int> in, int* out) {
  ASSIGN_OR_RETURN(const int value, in);
  RETURN_IF_ERROR(value < 0 ? absl::OutOfRangeError("negative") : absl::OkStatus());
  *out = 2 * value;
  return absl::OkStatus();
}

TEST(StatusTest, AssignOrReturnPassesValueOn) {
  int out = 0;
  EXPECT_TRUE(Twice(21, &out).ok());
  EXPECT_EQ(out, 42);
}

TEST(StatusTest, ErrorsLeaveTheFunctionUnchanged) {
  int out = 7;
  EXPECT_EQ(Twice(absl::NotFoundError("gone"), &out), absl::NotFoundError("gone"));
  EXPECT_EQ(Twice(-1, &out), absl::OutOfRangeError("negative"));
  EXPECT_EQ(out, 7);
}

TEST(StatusTest, AnnotateKeepsTheCodeAndOk) {
  EXPECT_EQ(Annotate(absl::AbortedError("stale"), "epoch 3"), absl::AbortedError("epoch 3: stale"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "anything").ok());
}

TEST(CheckDeathTest, NamesConditionAndMessage) {
  EXPECT_DEATH(MUSTER_CHECK_MSG(1 + 1 == 3, "arithmetic"), "1 \\+ 1 == 3 does not hold arithmetic");
}

}  // namespace
}  // namespace muster
