#include "coordinator/server/call_limiter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CallLimiterTest, EachLimitRefusesWithItsNameAndValue) {
  const struct {
    const char* name;
    ServerLimits limits;
    bool may_wait;
    int allowed;  // calls of one client
    const char *what, *limit;
  } rows[] = {
      {"of all", {.max_calls = 3}, false, 3, "of all clients", "at most 3"},
      {"of one", {.max_calls_per_client = 2}, false, 2, "calls in progress of this", "at most 2"},
      {"waits", {.max_waits_per_client = 1}, true, 1, "waiting calls of this", "at most 1"},
      {"plain calls are no waits",
       {.max_calls_per_client = 4, .max_waits_per_client = 1},
       false,
       4,
       "calls in progress of this",
       "at most 4"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    CallLimiter<int> limiter(row.limits);
    for (int i = 0; i < row.allowed; ++i) {
      ASSERT_TRUE(limiter.Begin("a", row.may_wait).ok()) << i;
    }
    const absl::Status refused = limiter.Begin("a", row.may_wait);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(row.what), HasSubstr(row.limit)));
    EXPECT_EQ(limiter.calls(), row.allowed);
    limiter.End("a", row.may_wait);
    EXPECT_TRUE(limiter.Begin("a", row.may_wait).ok());  // there is room again
  }
}

TEST(CallLimiterTest, WhatGoesBeyondAClientsTurnsComesInItsOrder) {
  CallLimiter<int> limiter({.max_turns_per_client = 2});
  EXPECT_EQ(limiter.TakeTurn("a", 1), 1);
  EXPECT_EQ(limiter.TakeTurn("a", 2), 2);
  EXPECT_EQ(limiter.TakeTurn("a", 3), std::nullopt);
  EXPECT_EQ(limiter.TakeTurn("a", 4), std::nullopt);
  EXPECT_EQ(limiter.TakeTurn("b", 5), 5);  // another client waits for none of them
  EXPECT_EQ(limiter.queued(), 2);
  EXPECT_EQ(limiter.EndTurn("a"), 3);
  EXPECT_EQ(limiter.EndTurn("a"), 4);
  EXPECT_EQ(limiter.EndTurn("a"), std::nullopt);
  EXPECT_EQ(limiter.TakeTurn("a", 6), 6);
}

TEST(CallLimiterTest, NothingIsLeftOfClientsThatHaveGone) {
  CallLimiter<int> limiter({.max_turns_per_client = 1});
  for (const char* client : {"a", "b", "c"}) {
    ASSERT_TRUE(limiter.Begin(client, true).ok());
    ASSERT_TRUE(limiter.TakeTurn(client, 0).has_value());
    limiter.TakeTurn(client, 1);
    limiter.End(client, true);  // the call is gone before its turn has ended
    EXPECT_EQ(limiter.EndTurn(client), 1);
    EXPECT_EQ(limiter.EndTurn(client), std::nullopt);
  }
  EXPECT_EQ(limiter.num_clients(), 0u);
  EXPECT_EQ(limiter.calls(), 0);
}

// An engine that handles one request after the other, with clients that keep it busy: nobody waits
// behind more than the turns of the others.
TEST(CallLimiterTest, AFloodDelaysOthersByAtMostItsTurns) {
  const int turns = 8;
  CallLimiter<int> limiter({.max_turns_per_client = turns});
  std::deque<std::pair<std::string, int>> engine;  // client, request
  const auto ask = [&](const std::string& client, int request) {
    if (limiter.TakeTurn(client, request)) engine.emplace_back(client, request);
  };
  for (int i = 0; i < 5'000; ++i) ask("flood", i);
  for (int round = 0; round < 100; ++round) {
    ask("other", round);
    int handled_before = 0;
    while (true) {
      const auto [client, request] = engine.front();
      engine.pop_front();
      if (const auto next = limiter.EndTurn(client)) engine.emplace_back(client, *next);
      if (client == "other") break;
      ++handled_before;
    }
    EXPECT_LE(handled_before, turns);
  }
}

}  // namespace
}  // namespace muster
