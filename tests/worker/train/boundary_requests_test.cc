#include "worker/train/boundary_requests.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

using Kind = Directive::Kind;

TEST(BoundaryRequestsTest, AStepWithoutDirectivesAsksForNothing) {
  const BoundaryRequests requests = RequestsOf({});
  EXPECT_FALSE(requests.exit.signal);
  EXPECT_FALSE(requests.exit.duration_passed);
  EXPECT_EQ(requests.exit.checkpoint_requested, "");
  EXPECT_EQ(requests.evaluation, "");
  EXPECT_FALSE(requests.trace.has_value());
  EXPECT_FALSE(requests.reform);
}

TEST(BoundaryRequestsTest, EveryDirectiveIsARequestWithItsReason) {
  TrainStepResult step;
  step.directives = {
      {1, Kind::kCheckpoint, "a"},        {2, Kind::kEvaluate, "b"}, {3, Kind::kStop, "c"},
      {4, Kind::kCheckpointAndStop, "d"}, {5, Kind::kTrace, "e", 3}, {6, Kind::kTrace, "f", 4},
      {7, Kind::kReform, "a worker left"}};
  const BoundaryRequests requests = RequestsOf(step);
  EXPECT_EQ(requests.exit.checkpoint_requested, "directive 1: a");
  EXPECT_EQ(requests.evaluation, "directive 2: b");
  EXPECT_EQ(requests.exit.stop_requested, "directive 3: c");
  EXPECT_EQ(requests.exit.checkpoint_and_stop_requested, "directive 4: d");
  ASSERT_TRUE(requests.trace.has_value());
  EXPECT_EQ(requests.trace->number, 6) << "the newest one";
  EXPECT_TRUE(requests.reform);
}

TEST(BoundaryRequestsTest, TheStrongestWishToExitWasAgreed) {
  TrainStepResult step;
  step.decision.exit_wish = ExitWish::kDuration;
  EXPECT_TRUE(RequestsOf(step).exit.duration_passed);
  EXPECT_FALSE(RequestsOf(step).exit.signal);
  step.decision.exit_wish = ExitWish::kSignal;
  EXPECT_TRUE(RequestsOf(step).exit.signal);
}

}  // namespace
}  // namespace muster
