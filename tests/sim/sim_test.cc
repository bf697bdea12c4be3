// Simulated clusters under faults. MUSTER_SIM_SEED=n runs one seed; MUSTER_SIM_SEEDS=n as many a
// case.
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "tests/sim/sim_cluster.h"

namespace muster {
namespace {

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

SimCluster::Tally RunSeeds(uint32_t first, SimOptions options) {
  SimCluster::Tally sum;
  const int one = FromEnvironment("MUSTER_SIM_SEED", 0);
  const int count = one != 0 ? 1 : FromEnvironment("MUSTER_SIM_SEEDS", 100);
  if (one != 0) first = one;
  for (uint32_t seed = first; seed < first + count; ++seed) {
    options.seed = seed;
    SimCluster cluster(options);
    const std::vector<std::string> wrong = cluster.Run();
    EXPECT_TRUE(wrong.empty()) << "MUSTER_SIM_SEED=" << seed << "\n" << absl::StrJoin(wrong, "\n");
    if (!wrong.empty()) break;
    const SimCluster::Tally tally = cluster.tally();
    sum.completed += tally.completed;
    sum.failed += tally.failed;
    sum.cancelled += tally.cancelled;
    sum.lost_agents += tally.lost_agents;
    sum.broken_streams += tally.broken_streams;
    sum.repeated += tally.repeated;
    sum.refused += tally.refused;
    sum.events += tally.events;
    sum.stale_reports += tally.stale_reports;
  }
  std::printf(
      "%d completed, %d failed, %d cancelled; %d agents lost, %d streams broken, "
      "%d repeated, %d refused, %ld stale, %ld events\n",
      sum.completed, sum.failed, sum.cancelled, sum.lost_agents, sum.broken_streams, sum.repeated,
      sum.refused, static_cast<long>(sum.stale_reports), static_cast<long>(sum.events));
  return sum;
}

TEST(SimTest, SmallClustersKeepTheirPromisesUnderFaults) {
  const auto tally = RunSeeds(1, {.num_agents = 3, .num_jobs = 5});
  if (std::getenv("MUSTER_SIM_SEED") != nullptr) return;
  EXPECT_GT(tally.completed, 0);  // faults leave some jobs alone, and hit some
  EXPECT_GT(tally.failed, 0);
  EXPECT_GT(tally.cancelled, 0);
  EXPECT_GT(tally.lost_agents, 0);
  EXPECT_GT(tally.repeated, 0);
  EXPECT_GT(tally.refused, 0);
  EXPECT_GT(tally.stale_reports, 0);
}

TEST(SimTest, LargerClustersKeepTheirPromisesUnderFaults) {
  RunSeeds(1001, {.num_agents = 8, .num_jobs = 8});
}

}  // namespace
}  // namespace muster
