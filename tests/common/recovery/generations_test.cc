#include "common/recovery/generations.h"

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Try, copy and count of one generation on one rank.
void Take(Generations& generations, int64_t iteration) {
  ASSERT_TRUE(generations.Begin(iteration).has_value());
  generations.Complete();
  generations.Counted(generations.vote());
}

TEST(GenerationsTest, ATryIsDueAnIntervalAfterTheLastCountedOne) {
  Generations generations;
  EXPECT_FALSE(generations.Due(1, 0));
  EXPECT_FALSE(generations.Due(1, 2));
  EXPECT_TRUE(generations.Due(2, 2));
  generations.Begin(2);
  EXPECT_FALSE(generations.Due(4, 2)) << "one at a time";
  generations.Complete();
  EXPECT_FALSE(generations.Due(4, 2)) << "complete here alone";
  generations.Counted(2);
  EXPECT_FALSE(generations.Due(3, 2));
  EXPECT_TRUE(generations.Due(4, 2));
}

TEST(GenerationsTest, TheVoteSaysCompleteFailedOrNothingNew) {
  Generations generations;
  EXPECT_EQ(generations.vote(), kNoGeneration);
  generations.Begin(1);
  EXPECT_EQ(generations.writing(), 1);
  EXPECT_EQ(generations.vote(), kNoGeneration);
  generations.Complete();
  EXPECT_EQ(generations.vote(), 1);
  generations.Counted(1);
  EXPECT_EQ(generations.newest_counted(), 1);
  generations.Begin(2);
  EXPECT_EQ(generations.vote(), kNoGeneration);
  generations.GiveUp();
  EXPECT_EQ(generations.vote(), kGivenUp);
  generations.Counted(kGivenUp);
  EXPECT_EQ(generations.vote(), 1);
  EXPECT_FALSE(generations.open_try().has_value());
}

TEST(GenerationsTest, OthersThatAreNotReadyChangeNothing) {
  Generations generations;
  generations.Begin(1);
  generations.Complete();
  generations.Counted(kNoGeneration);
  EXPECT_EQ(generations.newest_counted(), kNoGeneration);
  EXPECT_EQ(generations.open_try(), 1);
}

TEST(GenerationsTest, ACopyOfATryThatOthersGaveUpOnlyFreesItsSlot) {
  Generations generations;
  generations.Begin(1);
  generations.Counted(kGivenUp);
  ASSERT_TRUE(generations.Due(2, 1));
  EXPECT_FALSE(generations.Begin(2).has_value()) << "the old copy is still being written";
  EXPECT_EQ(generations.vote(), kGivenUp) << "so that this one is given up by all";
  generations.Complete();
  EXPECT_THAT(generations.complete(), ElementsAre());
  EXPECT_EQ(generations.vote(), kGivenUp);
  generations.Counted(kGivenUp);
  EXPECT_TRUE(generations.Begin(3).has_value());
}

TEST(GenerationsTest, TheCountedOneIsKeptAndTheOldestGoes) {
  Generations generations;
  Take(generations, 1);
  Take(generations, 2);
  Take(generations, 3);
  EXPECT_THAT(generations.complete(), ElementsAre(Pair(1, 0), Pair(2, 1), Pair(3, 2)));
  EXPECT_EQ(generations.Begin(4), 0);
  EXPECT_THAT(generations.complete(), ElementsAre(Pair(2, 1), Pair(3, 2)));
}

TEST(GenerationsTest, ARestoredJobDropsTheFutureAndKeepsWhatSnapshotsCover) {
  Generations generations({5, 10, 15});
  EXPECT_EQ(generations.newest_complete(), 15);
  generations.Restored(12, 5);
  EXPECT_THAT(generations.complete(), ElementsAre(Pair(5, 0), Pair(10, 1)));
  EXPECT_EQ(generations.vote(), 5);
  EXPECT_EQ(generations.Begin(15), 2);
  generations.GiveUp();
  generations.Counted(kGivenUp);
  EXPECT_EQ(generations.Begin(16), 2);
  generations.Complete();
  generations.Restored(16, 5);
  EXPECT_EQ(generations.Begin(17), 1) << "10 is older than 16, and 5 is the one that counts";
}

TEST(GenerationsTest, WhatOneNodesLossWouldTakeIsSoonFollowedByAnother) {
  Generations generations({10, 20, kNoGeneration});
  generations.Restored(20, 20, /*safe=*/kNoGeneration);
  EXPECT_FALSE(generations.Due(20, 10));
  ASSERT_TRUE(generations.Due(21, 10));
  EXPECT_EQ(generations.Begin(21), 2);
  generations.Complete();
  generations.Counted(21);
  EXPECT_FALSE(generations.Due(30, 10));
  EXPECT_TRUE(generations.Due(31, 10));
}

TEST(GenerationsTest, WithoutAFreeSlotTheTryIsGivenUp) {
  Generations generations({10, 10, 10});
  generations.Restored(10, 10);
  EXPECT_FALSE(generations.Begin(20).has_value());
  EXPECT_EQ(generations.vote(), kGivenUp);
}

TEST(GenerationsTest, TheSameIterationAgainTakesItsOwnSlot) {
  Generations generations({kNoGeneration, 10, kNoGeneration});
  generations.Restored(10, kNoGeneration);
  EXPECT_EQ(generations.Begin(10), 1);
  EXPECT_EQ(generations.vote(), kNoGeneration) << "the old copy is not the new try";
}

// Ranks step together with copies of random length that fail now and then, and recoveries. What was
// counted is held by all, always; and tries that all can make come to count.
TEST(GenerationsTest, WhatCountsIsCompleteOnAllRanks) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t interval = 1 + random() % 4;
    std::vector<Generations> ranks(2 + random() % 4);
    int64_t counted = kNoGeneration, times_counted = 0;
    for (int64_t iteration = 1; iteration <= 300; ++iteration) {
      int64_t minimum = iteration;
      for (Generations& rank : ranks) {
        if (rank.writing().has_value()) {
          const uint32_t luck = random() % 20;
          if (luck == 0) rank.GiveUp();
          if (luck > 8) rank.Complete();
        }
        minimum = std::min(minimum, rank.vote());
      }
      const bool dies = random() % 40 == 0;
      const size_t knowers = dies ? random() % (ranks.size() + 1) : ranks.size();
      for (size_t r = 0; r < knowers; ++r) ranks[r].Counted(minimum);
      if (dies) {
        // The newest that all hold stands in for what their snapshots cover.
        int64_t common = kNoGeneration;
        for (const auto& [held, slot] : ranks[0].complete()) {
          const bool everywhere = std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {
            const auto complete = rank.complete();
            return std::any_of(complete.begin(), complete.end(),
                               [held = held](const auto& one) { return one.first == held; });
          });
          if (everywhere) common = held;
        }
        ASSERT_GE(common, counted) << "iteration " << iteration;
        for (Generations& rank : ranks) {
          rank.GiveUp();
          rank.Restored(iteration, common);
        }
        counted = common;
      }
      std::set<bool> due;
      for (Generations& rank : ranks) due.insert(rank.Due(iteration, interval));
      ASSERT_EQ(due.size(), 1u) << "iteration " << iteration;
      for (Generations& rank : ranks) {
        if (*due.begin()) rank.Begin(iteration);
        ASSERT_EQ(rank.newest_counted(), ranks[0].newest_counted());
      }
      if (ranks[0].newest_counted() != counted) ++times_counted;
      counted = ranks[0].newest_counted();
      for (const Generations& rank : ranks) {
        const auto complete = rank.complete();
        ASSERT_TRUE(counted == kNoGeneration ||
                    std::any_of(complete.begin(), complete.end(),
                                [&](const auto& one) { return one.first == counted; }))
            << "iteration " << iteration << ", generation " << counted;
      }
    }
    EXPECT_GT(times_counted, 5);
  }
}

}  // namespace
}  // namespace muster
