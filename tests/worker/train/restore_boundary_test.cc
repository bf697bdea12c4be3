#include "worker/train/restore_boundary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kIteration = 7;

// A member that went through the boundary of the iteration, as one of a pipeline's first stage.
MemberText Live(int64_t boundary_done = kIteration, bool reported = false) {
  MemberText member;
  member.offer.held.push_back({.kind = HeldState::Kind::kLive, .iteration = kIteration});
  member.boundary_done = boundary_done;
  member.reported = reported;
  member.applied_through = 2;
  member.step = TrainStepResult{.grad_norm = 1.5};
  member.step->decision.apply_directives_through = 3;
  return member;
}
MemberText New() { return {}; }

// Live members keep their state; member `finishes` is a step behind.
RestoreDecision Decide(const std::vector<MemberText>& members, int finishes = -1) {
  RestoreDecision decision{.source = RestoreDecision::Source::kLive, .iteration = kIteration};
  for (const MemberText& member : members) {
    RestoreDecision::Member& decided = decision.members.emplace_back();
    if (HasLive(member)) decided.keeps = 0;
  }
  if (finishes < 0) return decision;
  decision.members[finishes].finishes = true;
  decision.finish_with = ToVector({.gap_free_directive = 5});
  return decision;
}

TEST(RestoreBoundaryTest, WithoutLiveStateNothingIsKnownAndNothingToRedo) {
  const std::vector<MemberText> members = {New(), New()};
  const RestoredBoundary boundary = BoundaryOf(members, Decide(members), 4);
  EXPECT_FALSE(boundary.step.has_value());
  EXPECT_EQ(boundary.directives_through, 4);
  EXPECT_TRUE(boundary.done);
  EXPECT_FALSE(boundary.redo);
}

TEST(RestoreBoundaryTest, ItIsDoneWhenAllThatLiveWereThroughAndTheReporterLives) {
  const std::vector<MemberText> members = {Live(), Live(kIteration, /*reported=*/true), New()};
  const RestoredBoundary boundary = BoundaryOf(members, Decide(members), 0);
  EXPECT_TRUE(boundary.done);
  EXPECT_FALSE(boundary.redo);
  EXPECT_EQ(boundary.directives_through, 3) << "the step's own agreement";
}

TEST(RestoreBoundaryTest, ItIsRedoneWhenSomebodyWasNotThroughOrTheReporterIsGone) {
  const std::vector<std::vector<MemberText>> rows = {
      {Live(), Live()},  // whoever told the job of it is dead
      {Live(), Live(kIteration - 1, /*reported=*/true)},
      {Live(kIteration - 1), Live(kIteration, /*reported=*/true)}};
  for (const std::vector<MemberText>& members : rows) {
    const RestoredBoundary boundary = BoundaryOf(members, Decide(members), 0);
    EXPECT_FALSE(boundary.done);
    EXPECT_TRUE(boundary.redo);
    ASSERT_TRUE(boundary.step.has_value());
    EXPECT_EQ(boundary.step->grad_norm, 1.5);
  }
}

TEST(RestoreBoundaryTest, AMemberWhoseStateIsNotUsedSaysNothing) {
  const std::vector<MemberText> members = {Live(), Live(kIteration, /*reported=*/true)};
  RestoreDecision decision = Decide(members);
  decision.members[1].keeps.reset();  // it is of another trajectory
  EXPECT_TRUE(BoundaryOf(members, decision, 0).redo);
  decision.members[1].gives = {0};  // as a helper's is
  EXPECT_FALSE(BoundaryOf(members, decision, 0).redo);
}

TEST(RestoreBoundaryTest, WhatAStepActsOnIsKnownFromWhoeverHasIt) {
  // The first stage heard the agreement, and holds the directives of the step; the last one, which
  // has the loss, finishes the step now.
  MemberText first = Live();
  first.step->directives = {{5, Directive::Kind::kCheckpoint, "asked for"}};
  MemberText last = Live(kIteration - 1, /*reported=*/true);
  last.step.reset();
  last.prepared_step = TrainStepResult{.losses = {{"lm loss", 2.25}}, .grad_norm = 1.5};
  const std::vector<MemberText> members = {first, last};
  const RestoredBoundary boundary = BoundaryOf(members, Decide(members, /*finishes=*/1), 0);
  ASSERT_TRUE(boundary.step.has_value());
  EXPECT_EQ(boundary.step->losses.at("lm loss"), 2.25);
  ASSERT_THAT(boundary.step->directives, SizeIs(1));
  EXPECT_EQ(boundary.step->directives[0].number, 5);
  EXPECT_EQ(boundary.directives_through, 5);
  EXPECT_TRUE(boundary.redo);
}

TEST(RestoreBoundaryTest, AFinishedStepActsOnTheAgreedDirectivesThatItHolds) {
  MemberText member = Live(kIteration - 1, /*reported=*/true);
  member.prepared_step = TrainStepResult{.grad_norm = 9};
  member.held = {{4, Directive::Kind::kStop, "enough"},
                 {5, Directive::Kind::kEvaluate, "a look"},
                 {6, Directive::Kind::kStop, "not agreed"}};
  const std::vector<MemberText> members = {member};
  RestoreDecision decision = Decide(members, /*finishes=*/0);
  RestoredBoundary boundary = BoundaryOf(members, decision, 0);
  ASSERT_THAT(boundary.step->directives, SizeIs(2));
  EXPECT_EQ(boundary.step->grad_norm, 9);
  EXPECT_FALSE(boundary.step->skipped);
  // A step without an update has no norm.
  decision.finish_with = ToVector({.found_inf = true});
  boundary = BoundaryOf(members, decision, 0);
  EXPECT_TRUE(boundary.step->skipped);
  EXPECT_FALSE(boundary.step->grad_norm.has_value());
  EXPECT_THAT(boundary.step->directives, IsEmpty());
}

}  // namespace
}  // namespace muster
