#include "recovery_model.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recovery_explorer.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// Under a sanitizer states cost ten times as much: what it could find, one failure shows.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

// Every state that the options let happen keeps the rules, and its ways on lead to the end.
void ExpectProven(const ModelOptions& options) {
  const Exploration result = Explore(options);
  std::printf(
      "%lld states, %lld transitions, %lld ends\n", static_cast<long long>(result.num_states),
      static_cast<long long>(result.num_transitions), static_cast<long long>(result.num_ends));
  EXPECT_EQ(result.broken, "");
  EXPECT_GT(result.num_ends, 0);
}

TEST(RecoveryModelTest, ReplicatedStateLosesNothingToTwoDeaths) {
  ExpectProven({.interval = 0, .deaths = kSlow ? 1 : 2, .short_tails = true});
}

TEST(RecoveryModelTest, AllOrdersAfterADeathOfAReplicaEndWell) {
  ExpectProven({.interval = 0, .deaths = 1});
}

TEST(RecoveryModelTest, ShardedStateWithoutSnapshotsBeginsAnew) {
  ExpectProven({.sharded = true,
                .interval = 0,
                .deaths = 1,
                .mass_deaths = kSlow ? 0 : 1,
                .short_tails = true});
}

TEST(RecoveryModelTest, ShardedStateSurvivesADeathInEveryCopy) {
  ExpectProven({.sharded = true,
                .interval = 1,
                .deaths = 1,
                .quick_copies = true,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, ShardedStateSurvivesTwoDeaths) {
  ExpectProven({.sharded = true,
                .interval = 2,
                .deaths = kSlow ? 1 : 2,
                .quick_copies = true,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, ShardedStateSurvivesADeathAndANode) {
  ExpectProven({.sharded = true,
                .interval = 2,
                .deaths = kSlow ? 0 : 1,
                .node_losses = 1,
                .quick_copies = true,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, ReplicatedStateSurvivesTheDeathOfAllAndANode) {
  ExpectProven({.interval = 1,
                .deaths = 0,
                .mass_deaths = 1,
                .node_losses = kSlow ? 0 : 1,
                .quick_copies = true,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, SlowCopiesAndALostNode) {
  ExpectProven({.sharded = true,
                .interval = 1,
                .deaths = 0,
                .node_losses = 1,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, SlowCopiesAndTheDeathOfAll) {
  ExpectProven({.sharded = true,
                .interval = 1,
                .deaths = 0,
                .mass_deaths = 1,
                .coarse_steps = true,
                .short_tails = true});
}

TEST(RecoveryModelTest, CopiesThatFailAreGivenUpByAll) {
  ExpectProven({.sharded = true,
                .interval = 1,
                .deaths = 0,
                .copy_failures = kSlow ? 1 : 2,
                .quick_copies = true,
                .coarse_steps = true,
                .short_tails = kSlow});
}

// ---- The search finds what it should.

struct Row {
  const char* name;
  Mutation mutation;
  ModelOptions options;
  const char* want;  // a part of the broken rule
};

TEST(RecoveryModelTest, FaultsInTheLogicAreFound) {
  const ModelOptions steps = {.interval = 0, .deaths = 1};
  ModelOptions copies = {.sharded = true,
                         .interval = 1,
                         .deaths = 1,
                         .quick_copies = true,
                         .coarse_steps = true,
                         .short_tails = true};
  ModelOptions twice = copies;
  twice.deaths = 2;
  const Row rows[] = {
      {"a step is committed without the agreement's result", Mutation::kCommitWithoutResult, steps,
       "a dead end"},
      {"a result is known to one rank only",
       Mutation::kResultNotKept,
       {.interval = 0, .deaths = 2, .short_tails = true},
       "step 1 is committed and all there"},
      {"data is not put back", Mutation::kDataNotPutBack, steps, "lost or repeated samples"},
      {"a fill forgets the report", Mutation::kReportNotGiven, steps, "a dead end"},
      {"the counted snapshot is overwritten", Mutation::kCountedIsOverwritten, copies,
       "but rank 0 does not hold it"},
      {"own copies alone count",
       Mutation::kCountedWithoutBuddy,
       {.sharded = true, .interval = 1, .deaths = 1, .coarse_steps = true, .short_tails = true},
       "without rank 0's buddy's copy"},
      {"two runs of a step are mixed", Mutation::kEpochsNotTold, twice, "of another run"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ModelOptions options = row.options;
    options.mutation = row.mutation;
    EXPECT_THAT(Explore(options).broken, HasSubstr(row.want));
  }
}

}  // namespace
}  // namespace muster
