#include "common/control/directive_log.h"

#include <string>

#include "gtest/gtest.h"

namespace muster {
namespace {

Directive Numbered(int64_t number) {
  return {number, Directive::Kind::kEvaluate, "request " + std::to_string(number)};
}

TEST(DirectiveLogTest, HandsOutEachOnceAndInOrder) {
  DirectiveLog log;
  for (int64_t number : {3, 1, 2}) ASSERT_TRUE(log.Receive(Numbered(number)).ok());
  EXPECT_EQ(log.gap_free_through(), 3);
  EXPECT_EQ(log.Apply(2), (std::vector<Directive>{Numbered(1), Numbered(2)}));
  EXPECT_EQ(log.Apply(2), std::vector<Directive>{});
  EXPECT_EQ(log.Apply(3), std::vector<Directive>{Numbered(3)});
  EXPECT_EQ(log.applied_through(), 3);
}

TEST(DirectiveLogTest, AGapHoldsBackWhatIsBehindIt) {
  DirectiveLog log;
  ASSERT_TRUE(log.Receive(Numbered(1)).ok());
  ASSERT_TRUE(log.Receive(Numbered(4)).ok());
  ASSERT_TRUE(log.Receive(Numbered(3)).ok());
  EXPECT_EQ(log.gap_free_through(), 1);
  EXPECT_EQ(log.num_waiting_for_gap(), 2);
  ASSERT_TRUE(log.Receive(Numbered(2)).ok());
  EXPECT_EQ(log.gap_free_through(), 4);
  EXPECT_EQ(log.num_waiting_for_gap(), 0);
}

TEST(DirectiveLogTest, RepeatsChangeNothing) {
  DirectiveLog log;
  ASSERT_TRUE(log.Receive(Numbered(1)).ok());
  ASSERT_TRUE(log.Receive(Numbered(1)).ok());
  EXPECT_EQ(log.Apply(1).size(), 1u);
  ASSERT_TRUE(log.Receive(Numbered(1)).ok());  // late repeat of an applied one
  EXPECT_EQ(log.gap_free_through(), 1);
  EXPECT_TRUE(log.Apply(1).empty());
}

TEST(DirectiveLogTest, StartsBehindWhatAnEarlierEpochApplied) {
  DirectiveLog log(5);
  EXPECT_EQ(log.gap_free_through(), 5);
  ASSERT_TRUE(log.Receive(Numbered(4)).ok());
  ASSERT_TRUE(log.Receive(Numbered(6)).ok());
  EXPECT_EQ(log.Apply(6), std::vector<Directive>{Numbered(6)});
  EXPECT_TRUE(log.Apply(0).empty());
}

TEST(DirectiveLogTest, WhatWasNotActedOnIsTakenBack) {
  DirectiveLog log(1);
  for (const int64_t number : {2, 3, 5}) ASSERT_TRUE(log.Receive(Numbered(number)).ok());
  log.TakeBack(log.Apply(3));
  EXPECT_EQ(log.applied_through(), 1);
  EXPECT_EQ(log.gap_free_through(), 3);
  EXPECT_EQ(log.held(), (std::vector<Directive>{Numbered(2), Numbered(3), Numbered(5)}));
  EXPECT_EQ(log.Apply(3), (std::vector<Directive>{Numbered(2), Numbered(3)}));
}

TEST(DirectiveLogTest, TwoContentsForOneNumberAreRefused) {
  DirectiveLog log;
  ASSERT_TRUE(log.Receive(Numbered(1)).ok());
  const absl::Status status = log.Receive({1, Directive::Kind::kStop, "another"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(log.Apply(1), std::vector<Directive>{Numbered(1)});
  EXPECT_FALSE(log.Receive(Numbered(0)).ok());
}

}  // namespace
}  // namespace muster
