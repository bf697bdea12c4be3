// A rank that lives and makes no progress while the others wait for it in a collective operation:
// it is found, named and replaced, and no number changes for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kFaultPass = 30 * kPassesOfAStep + 2;  // in the middle of step 31

// The rank of the node that the fault is set for; before it strikes.
void StartWithFault(FaultCase& run, const std::string& kind, int* rank) {
  run.SetFault(kind, 1, kFaultPass);
  run.StartAndReach(1);
  *rank = run.WorkerOf(1)["rank"];
}

TEST(HangTest, ARankThatSleepsForEverIsFoundWithinThreeOfItsStepsAndASecond) {
  FaultCase run({"dp2", 2, json::object(), {1, 1}});
  int rank = -1;
  StartWithFault(run, "hang", &rank);
  const std::string text = run.WaitForEvent("hang");
  const StepLimit limit = LimitOfSteps(run.Status());
  // Who is missing where, by the coordinator's own words.
  EXPECT_THAT(text, HasSubstr(absl::StrCat("rank ", rank, " has not arrived in ")));
  EXPECT_THAT(text, ContainsRegex(absl::StrCat("operations: .*\\(ranks 0-1\\) [a-z_]+.*number "
                                               "[0-9]+: rank ",
                                               1 - rank, " waits for .*; missing: rank ", rank)));
  // 3 x p99 + 1 s, and what the second probe and its answers take; 1 s more for a loaded machine.
  EXPECT_LE(absl::AbsDuration(limit.limit - (3 * limit.p99 + absl::Seconds(1))),
            absl::Milliseconds(5));
  EXPECT_LE(DurationAfter(text, "no progress for "), limit.limit + absl::Seconds(1)) << text;
  EXPECT_GE(DurationAfter(text, "no progress for "), absl::Seconds(1)) << text;
  run.ExpectSameEnd();
  const json status = run.Status();
  EXPECT_EQ(status["restarts"], 1);
  EXPECT_EQ(status["cause"]["kind"], "hang") << status;
  EXPECT_EQ(status["cause"]["rank"], rank) << status;
  EXPECT_THAT(run.WaitForEvent("recovered"), HasSubstr(absl::StrCat("rank ", rank, " in place")));
}

// It computes, so that it may be slow; the limit of a person's choice ends that.
TEST(HangTest, ARankThatComputesForEverIsEndedByTheWatchdog) {
  FaultCase run({"dp2", 2, json::object(), {1, 1}});
  run.spec()["recovery"]["watchdog_timeout_s"] = 3;
  int rank = -1;
  StartWithFault(run, "spin", &rank);
  const std::string slow = run.WaitForEvent("hang");
  EXPECT_THAT(slow, AllOf(HasSubstr(absl::StrCat("rank ", rank, " computes, others wait")),
                          HasSubstr("nobody is stopped for it before 3s")));
  run.ExpectSameEnd();
  const json status = run.Status();
  EXPECT_EQ(status["restarts"], 1);
  EXPECT_EQ(status["cause"]["rank"], rank) << status;
  EXPECT_THAT(status["cause"]["text"].get<std::string>(), HasSubstr("computes, and the others"));
  EXPECT_THAT(run.WaitForEvent("recovered"), HasSubstr(absl::StrCat("rank ", rank, " in place")));
}

}  // namespace
}  // namespace muster
