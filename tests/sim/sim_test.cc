// Simulated clusters under all faults at once. MUSTER_SIM_SEED=n runs one seed of a case,
// MUSTER_SIM_SEEDS=n changes how many the cases run, as if they were 1,000 together (the nightly
// run takes more), MUSTER_SIM_TRACE=1 prints what happens.
#include <gtest/gtest.h>

#include "tests/sim/sim_seeds.h"

namespace muster {
namespace {

void ExpectThatMuchHappened(const SimCluster::Tally& tally) {
  if (OneSeed()) return;
  EXPECT_GT(tally.completed, 0);  // faults leave some jobs alone, and hit some
  EXPECT_GT(tally.failed, 0);
  EXPECT_GT(tally.cancelled, 0);
  EXPECT_GT(tally.crashed_agents, 0);
  EXPECT_GT(tally.new_incarnations, 0);
  EXPECT_GT(tally.broken_streams, 0);
  EXPECT_GT(tally.repeated, 0);
  EXPECT_GT(tally.refused, 0);
  EXPECT_GT(tally.stale_reports, 0);
  EXPECT_GT(tally.writes, tally.steps / 2);
  for (const char* fault :
       {"break_stream", "crash_agent", "terminate_agent", "freeze_agent", "kill_trainer",
        "freeze_trainer", "cut_one", "cut_all", "crash_coordinator", "freeze_coordinator",
        "lose_power", "disk_full", "disk_low", "spill_full", "jump_clock", "say_stale", "flood"}) {
    EXPECT_GT(tally.faults.contains(fault), 0) << fault;
  }
}

TEST(SimTest, SmallClustersKeepTheirPromises) {
  ExpectThatMuchHappened(RunSeeds(1, 600, {.num_nodes = 3, .num_jobs = 5}));
}

TEST(SimTest, MiddlingClustersKeepTheirPromises) {
  ExpectThatMuchHappened(RunSeeds(
      10'001, 280, {.num_nodes = 8, .max_slots = 8, .num_jobs = 8, .people = {.max_world = 20}}));
}

// Much goes wrong in a short time, so that faults meet each other.
TEST(SimTest, SmallClustersKeepTheirPromisesUnderDenseFaults) {
  RunSeeds(20'001, 100,
           {.num_nodes = 4,
            .num_jobs = 6,
            .faults = {.pause = absl::Milliseconds(700), .longest_away = absl::Seconds(10)}});
}

TEST(SimTest, LargeClustersKeepTheirPromises) {
  RunSeeds(30'001, 18,
           {.num_nodes = 40,
            .min_slots = 4,
            .max_slots = 8,
            .num_jobs = 20,
            .people = {.max_world = 60},
            .faults = {.pause = absl::Seconds(2)}});
}

TEST(SimTest, TwoThousandWorkersAndFiftyJobsKeepTheirPromises) {
  RunSeeds(40'001, 2,
           {.num_nodes = 250,
            .min_slots = 8,
            .max_slots = 8,
            .num_jobs = 50,
            .calm = absl::Seconds(500),
            .people = {.max_world = 200},
            .faults = {.pause = absl::Seconds(1)}});
}

TEST(SimTest, TheSameSeedGivesTheSameRun) {
  SimCluster::Tally tallies[2];
  for (SimCluster::Tally& tally : tallies) {
    SimCluster cluster({.seed = 77});
    cluster.Run();
    tally = cluster.tally();
  }
  EXPECT_EQ(tallies[0].actions, tallies[1].actions);
  EXPECT_EQ(tallies[0].steps, tallies[1].steps);
  EXPECT_EQ(tallies[0].writes, tallies[1].writes);
  EXPECT_EQ(tallies[0].faults, tallies[1].faults);
}

}  // namespace
}  // namespace muster
