// Simulated clusters under faults. MUSTER_SIM_SEED=n runs one seed of a case, MUSTER_SIM_SEEDS=n as
// many, MUSTER_SIM_TRACE=1 prints what happens.
#include <gtest/gtest.h>

#include "tests/sim/sim_seeds.h"

namespace muster {
namespace {

TEST(SimTest, SmallClustersKeepTheirPromisesUnderFaults) {
  const auto tally = RunSeeds(1, 450, {.num_nodes = 3, .num_jobs = 5});
  if (OneSeed()) return;
  EXPECT_GT(tally.completed, 0);  // faults leave some jobs alone, and hit some
  EXPECT_GT(tally.failed, 0);
  EXPECT_GT(tally.cancelled, 0);
  EXPECT_GT(tally.crashed_agents, 0);
  EXPECT_GT(tally.repeated, 0);
  EXPECT_GT(tally.refused, 0);
}

TEST(SimTest, MiddlingClustersKeepTheirPromisesUnderFaults) {
  RunSeeds(10'001, 450,
           {.num_nodes = 8, .max_slots = 4, .num_jobs = 8, .people = {.max_world = 10}});
}

}  // namespace
}  // namespace muster
