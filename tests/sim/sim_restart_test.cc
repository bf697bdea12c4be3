// Simulated clusters whose coordinator dies while something else fails, or does not: a job that has
// failed goes on as soon as what it needs is back, and one that trains is left alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_seeds.h"

namespace muster {
namespace {

// Jobs that train from about second 5 to about second 85 and may recover; nothing happens by
// itself.
SimOptions LongJobs() {
  SimOptions options = QuietOptions(/*num_nodes=*/6, /*num_jobs=*/3);
  options.people.percent_recovering = 100;
  options.people.max_world = 3;
  options.people.min_iters = options.people.max_iters = 400;
  return options;
}

std::set<int> NodesOf(const JobMachine& job) {
  std::set<int> nodes;
  for (const RankSlot& slot : job.ranks()) nodes.insert(std::stoi(slot.node.substr(1)));
  return nodes;
}

// One that trains, on several nodes; nullptr: there is none.
const JobMachine* Spread(SimCluster& cluster) {
  for (const auto& [sequence, job] : cluster.host().core().jobs()) {
    if (job->state() == JobState::kRunning && NodesOf(*job).size() > 1) return job.get();
  }
  return nullptr;
}

int NodeOf(const RankSlot& slot) { return std::stoi(slot.node.substr(1)); }

// Kills something of a job while the coordinator is away, and a node that the job has nothing to do
// with cannot be heard for long. The job must be at work again `within` of the coordinator's
// return.
void FailMeanwhile(SimCluster& cluster, absl::Duration within, int* num_hit,
                   const std::function<void(const JobMachine&)>& fail) {
  cluster.sim().At(absl::Seconds(20), [&cluster, within, num_hit, fail] {
    const JobMachine* job = Spread(cluster);
    if (job == nullptr) return;
    ++*num_hit;
    const std::string job_id = job->job_id();
    const std::set<int> nodes = NodesOf(*job);
    int other = 0;
    while (nodes.contains(other)) ++other;
    if (other < 6) cluster.network().Cut(other, cluster.sim().steady() + absl::Seconds(50));
    const absl::Duration away = cluster.sim().Between(absl::Milliseconds(500), absl::Seconds(8));
    fail(*job);  // a moment later: before the coordinator has heard of it
    cluster.faults().CrashCoordinator(away);
    cluster.sim().At(away + within, [&cluster, job_id] {
      const JobMachine* later = cluster.host().core().FindJob(job_id);
      const bool waits = later->Wait().has_value() && later->Wait()->phase == "workers";
      if (later->limits_stand_still() || (later->aborted() && !later->ended() && !waits)) {
        cluster.sim().Wrong(absl::StrCat(job_id, " is still not planned for: ",
                                         JobStateName(later->state()), ", ", later->reason()));
      }
    });
  });
}

TEST(SimRestartTest, ATrainerThatDiesMeanwhileIsReplacedSoonAfter) {
  SimOptions options = LongJobs();
  int num_hit = 0;
  options.script = [&num_hit](SimCluster& cluster) {
    FailMeanwhile(cluster, absl::Seconds(4), &num_hit, [&cluster](const JobMachine& job) {
      SimTrainers::World* world = cluster.trainers().FindWorld(job.job_id(), job.epoch());
      const int64_t pid = world->pids[cluster.sim().Pick(world->world_size)];
      cluster.sim().At(absl::Milliseconds(100),
                       [&cluster, pid] { cluster.trainers().Kill(pid, 9); });
    });
  };
  const SimCluster::Tally tally = RunSeeds(1, 30, options);
  EXPECT_EQ(tally.failed, 0);
  EXPECT_GT(num_hit, SeedCount(30) / 8);
  EXPECT_GE(tally.restarts, num_hit);
}

TEST(SimRestartTest, ANodeThatDiesMeanwhileIsDoneWithoutSoonAfter) {
  SimOptions options = LongJobs();
  int num_hit = 0;
  options.script = [&num_hit](SimCluster& cluster) {
    FailMeanwhile(cluster, absl::Seconds(8), &num_hit, [&cluster](const JobMachine& job) {
      const int node = NodeOf(job.ranks()[cluster.sim().Pick(job.world_size())]);
      cluster.sim().At(absl::Milliseconds(100), [&cluster, node] { cluster.agents().Crash(node); });
      cluster.sim().At(absl::Seconds(60), [&cluster, node] { cluster.agents().Boot(node); });
    });
  };
  const SimCluster::Tally tally = RunSeeds(1, 30, options);
  EXPECT_GT(num_hit, SeedCount(30) / 8);
  EXPECT_GE(tally.restarts, num_hit);
}

// "I cannot reach it" is not "it failed": the coordinator is away, and then one of the nodes cannot
// reach it for much longer. All trainers live, and nothing is recovered.
TEST(SimRestartTest, WhoCannotComeBackWhileItsJobTrainsIsNotGivenUp) {
  SimOptions options = LongJobs();
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(20), [&cluster] {
      const absl::Duration away = cluster.sim().Between(absl::Milliseconds(500), absl::Seconds(8));
      cluster.network().Cut(cluster.sim().Pick(6),
                            cluster.sim().steady() + away + absl::Seconds(40));
      cluster.faults().CrashCoordinator(away);
    });
  };
  const SimCluster::Tally tally = RunSeeds(1, 30, options);
  EXPECT_EQ(tally.completed, options.num_jobs * SeedCount(30));
  EXPECT_EQ(tally.restarts, 0);
}

}  // namespace
}  // namespace muster
