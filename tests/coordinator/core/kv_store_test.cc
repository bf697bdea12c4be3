#include "coordinator/core/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

WaitPrefix Wait(WaitToken token, const std::string& prefix, int count) {
  return {.token = token, .prefix = prefix, .count = count, .limit = absl::Seconds(10)};
}
const WaitDone& Done(const Action& action) { return std::get<WaitDone>(action); }

TEST(KvStoreTest, WaiterGoesOnWithItsLastKey) {
  KvStore store({});
  std::vector<Action> done;
  ASSERT_TRUE(store.Set("tp/0", "a", &done).ok());
  ASSERT_TRUE(store.Set("dp/0", "x", &done).ok());
  ASSERT_TRUE(store.Wait(Wait(7, "tp/", 2), kNow, &done).ok());
  EXPECT_TRUE(done.empty());
  ASSERT_TRUE(store.Set("tp/1", "b", &done).ok());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(Done(done[0]).token, 7u);
  EXPECT_THAT(Done(done[0]).entries, ElementsAre(Pair("tp/0", "a"), Pair("tp/1", "b")));
  EXPECT_EQ(store.num_waiters(), 0u);
}

TEST(KvStoreTest, KeysThatAreThereAnswerAtOnce) {
  KvStore store({});
  std::vector<Action> done;
  ASSERT_TRUE(store.Set("a1", "1", &done).ok());
  ASSERT_TRUE(store.Wait(Wait(1, "a", 1), kNow, &done).ok());
  ASSERT_TRUE(store.Wait(Wait(2, "b", 0), kNow, &done).ok());
  ASSERT_EQ(done.size(), 2u);
  EXPECT_TRUE(Done(done[1]).entries.empty());
}

TEST(KvStoreTest, RepeatedSetIsOneKeyWithTheLastValue) {
  KvStore store({});
  std::vector<Action> done;
  ASSERT_TRUE(store.Wait(Wait(1, "k", 2), kNow, &done).ok());
  ASSERT_TRUE(store.Set("k0", "old", &done).ok());
  ASSERT_TRUE(store.Set("k0", "new", &done).ok());
  EXPECT_TRUE(done.empty());
  ASSERT_TRUE(store.Set("k1", "", &done).ok());
  EXPECT_THAT(Done(done.at(0)).entries, ElementsAre(Pair("k0", "new"), Pair("k1", "")));
}

TEST(KvStoreTest, PassedLimitSaysHowManyAreThere) {
  KvStore store({});
  std::vector<Action> done;
  ASSERT_TRUE(store.Set("g/0", "", &done).ok());
  ASSERT_TRUE(store.Wait(Wait(1, "g/", 4), kNow, &done).ok());
  store.Expire(kNow + absl::Seconds(9), &done);
  EXPECT_TRUE(done.empty());
  store.Expire(kNow + absl::Seconds(10), &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(Done(done[0]).status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(Done(done[0]).status.message()), HasSubstr("1 of 4"));
}

TEST(KvStoreTest, AWaitIsBounded) {
  KvStore store({.max_waiters = 1, .max_wait = absl::Seconds(2)});
  std::vector<Action> done;
  WaitPrefix wait = Wait(1, "g", 1);
  wait.limit = absl::InfiniteDuration();
  ASSERT_TRUE(store.Wait(wait, kNow, &done).ok());
  EXPECT_EQ(store.Wait(Wait(2, "g", 1), kNow, &done).code(), absl::StatusCode::kResourceExhausted);
  store.Expire(kNow + absl::Seconds(2), &done);
  EXPECT_EQ(done.size(), 1u);
}

TEST(KvStoreTest, CancelledWaiterIsNotAnswered) {
  KvStore store({});
  std::vector<Action> done;
  ASSERT_TRUE(store.Wait(Wait(1, "g", 1), kNow, &done).ok());
  store.Cancel(1);
  store.Cancel(99);
  ASSERT_TRUE(store.Set("g", "", &done).ok());
  EXPECT_TRUE(done.empty());
}

TEST(KvStoreTest, LimitsAreEnforced) {
  KvStore store({.max_key = 4, .max_value = 8, .max_bytes = 12});
  std::vector<Action> done;
  EXPECT_EQ(store.Set("", "v", &done).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Set("12345", "v", &done).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Set("k", "123456789", &done).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(store.Set("a", "12345678", &done).ok());
  EXPECT_EQ(store.Set("b", "123", &done).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Set("a", "1", &done).ok());  // a smaller value makes room
  EXPECT_TRUE(store.Set("b", "123", &done).ok());
}

// Against a dumb second version: every waiter is answered when, and only when, its keys are there.
TEST(KvStoreTest, AgreesWithCountingByHand) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    KvStore store({});
    std::map<std::string, std::string> keys;
    std::map<WaitToken, WaitPrefix> open;
    const auto word = [&] {
      std::string text;
      for (uint32_t i = random() % 4; i > 0; --i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    for (WaitToken token = 1; token <= 200; ++token) {
      std::vector<Action> done;
      if (random() % 2 == 0) {
        const std::string key = "k" + word();
        keys[key] = "v";
        ASSERT_TRUE(store.Set(key, "v", &done).ok());
      } else {
        open[token] = Wait(token, "k" + word(), static_cast<int>(random() % 6));
        ASSERT_TRUE(store.Wait(open[token], kNow, &done).ok());
      }
      for (const Action& action : done) open.erase(Done(action).token);
      for (const auto& [t, wait] : open) {
        const auto there = std::count_if(keys.begin(), keys.end(), [&](const auto& entry) {
          return entry.first.compare(0, wait.prefix.size(), wait.prefix) == 0;
        });
        EXPECT_LT(there, wait.count);
      }
      EXPECT_EQ(store.num_waiters(), open.size());
    }
  }
}

}  // namespace
}  // namespace muster
