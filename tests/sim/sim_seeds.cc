#include "tests/sim/sim_seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

void Add(const SimCluster::Tally& one, SimCluster::Tally* sum) {
  sum->completed += one.completed;
  sum->failed += one.failed;
  sum->cancelled += one.cancelled;
  sum->exited += one.exited;
  sum->coordinator_lives += one.coordinator_lives;
  sum->crashed_agents += one.crashed_agents;
  sum->restarts += one.restarts;
  sum->new_incarnations += one.new_incarnations;
  sum->broken_streams += one.broken_streams;
  sum->repeated += one.repeated;
  sum->refused += one.refused;
  sum->actions += one.actions;
  sum->steps += one.steps;
  sum->writes += one.writes;
  sum->batches += one.batches;
  sum->stale_reports += one.stale_reports;
  sum->longest_step_gap = std::max(sum->longest_step_gap, one.longest_step_gap);
  for (const auto& [fault, count] : one.faults) sum->faults[fault] += count;
}

}  // namespace

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

bool OneSeed() { return FromEnvironment("MUSTER_SIM_SEED", 0) != 0; }

int SeedCount(int count) {
  if (OneSeed()) return 1;
  return std::max<int>(1, int64_t{count} * FromEnvironment("MUSTER_SIM_SEEDS", 1000) / 1000);
}

SimCluster::Tally RunSeeds(uint32_t first, int count, SimOptions options) {
  SimCluster::Tally sum;
  count = SeedCount(count);
  if (OneSeed()) first = FromEnvironment("MUSTER_SIM_SEED", 0);
  options.trace = FromEnvironment("MUSTER_SIM_TRACE", 0) != 0;
  for (uint32_t seed = first; seed < first + count; ++seed) {
    options.seed = seed;
    SimCluster cluster(options);
    const std::vector<std::string> wrong = cluster.Run();
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    EXPECT_TRUE(wrong.empty()) << "to see it again: MUSTER_SIM_SEED=" << seed
                               << " MUSTER_SIM_TRACE=1 sim_test --gtest_filter="
                               << test->test_suite_name() << "." << test->name() << "\n"
                               << absl::StrJoin(wrong, "\n");
    Add(cluster.tally(), &sum);
    if (!wrong.empty()) break;
  }
  std::printf(
      "%d seeds, %d completed, %d failed, %d cancelled, %d exited; %d coordinator lives, "
      "%d agents crashed, %d new incarnations, %d streams broken, %d repeated, %d refused, "
      "%d stale; %.1f thousand steps, %.1f thousand writes, %.2f million actions\n",
      count, sum.completed, sum.failed, sum.cancelled, sum.exited, sum.coordinator_lives,
      sum.crashed_agents, sum.new_incarnations, sum.broken_streams, sum.repeated, sum.refused,
      static_cast<int>(sum.stale_reports), sum.steps / 1e3, sum.writes / 1e3, sum.actions / 1e6);
  return sum;
}

SimOptions QuietOptions(int num_nodes, int num_jobs) {
  SimOptions options{.num_nodes = num_nodes, .num_jobs = num_jobs, .meddling = false};
  options.submits = absl::Seconds(5);
  options.faults.pause = absl::InfiniteDuration();
  options.faults.weights.launch_fails = 0;
  options.people.percent_spares = 0;
  options.people.percent_recovering = 0;
  return options;
}

}  // namespace muster
