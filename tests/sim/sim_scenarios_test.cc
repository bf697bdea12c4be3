// Simulated clusters in which one thing goes wrong, and of which exactly that is expected which was
// promised: the coordinator's death and absence, and silence between it and agents, fail no job,
// start nothing again and stall no step.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/sim_seeds.h"

namespace muster {
namespace {

SimOptions Quiet() { return QuietOptions(/*num_nodes=*/4, /*num_jobs=*/3); }

void ExpectNothingNoticed(const SimCluster::Tally& tally, const SimOptions& options, int seeds) {
  EXPECT_EQ(tally.completed, options.num_jobs * seeds);
  EXPECT_EQ(tally.failed, 0);
  EXPECT_EQ(tally.restarts, 0);
  EXPECT_LE(tally.longest_step_gap, options.longest_step);
}

// Jobs that train from about second 5 to about second 85.
SimOptions LongJobs() {
  SimOptions options = Quiet();
  options.people.min_iters = options.people.max_iters = 400;
  return options;
}

TEST(SilenceTest, APartitionFromAllAgentsFor30SecondsRestartsNothing) {
  SimOptions options = LongJobs();
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(20), [&] { cluster.faults().CutAll(absl::Seconds(30)); });
  };
  ExpectNothingNoticed(RunSeeds(1, 20, options), options, SeedCount(20));
}

TEST(SilenceTest, APartitionFromOneAgentFor30SecondsRestartsNothing) {
  SimOptions options = LongJobs();
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(20), [&] {
      cluster.network().Cut(cluster.sim().Pick(4), cluster.sim().steady() + absl::Seconds(30));
    });
  };
  ExpectNothingNoticed(RunSeeds(1, 20, options), options, SeedCount(20));
}

// Jobs end while the agents of some of their ranks are cut off.
TEST(SilenceTest, AJobThatEndsDuringAPartitionOf30SecondsIsNotFailed) {
  SimOptions options = Quiet();
  options.people.percent_recovering = 100;
  options.people.min_iters = 30;
  options.people.max_iters = 130;
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(10), [&] {
      cluster.network().Cut(cluster.sim().Pick(4), cluster.sim().steady() + absl::Seconds(30));
    });
    cluster.sim().At(absl::Seconds(59), [&] {
      for (const auto& [sequence, job] : cluster.host().core().jobs()) {
        if (job->restarts() == 0) continue;
        cluster.sim().Wrong(absl::StrCat(job->job_id(), " was restarted: ", job->cause()->text));
      }
    });
  };
  const SimCluster::Tally tally = RunSeeds(1, 120, options);
  EXPECT_EQ(tally.completed, options.num_jobs * SeedCount(120));
  EXPECT_EQ(tally.failed, 0);
}

// A trainer dies at any moment between the order to save and stop and the end of the job.
TEST(StopTest, AFailureOnTheWayToSaveAndStopIsRecoveredAndTheStopObeyed) {
  SimOptions options = LongJobs();
  options.people.percent_recovering = 100;
  int num_saving = 0, num_recovered = 0;
  options.script = [&](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(20), [&] {
      for (const std::string& job : cluster.people().jobs()) {
        cluster.people().Cancel(job, CancelMode::kCheckpointAndStop);
        cluster.sim().At(
            cluster.sim().Between(absl::ZeroDuration(), absl::Milliseconds(900)), [&cluster, job] {
              const int64_t epoch = cluster.host().core().FindJob(job)->epoch();
              SimTrainers::World* world = cluster.trainers().FindWorld(job, epoch);
              if (world == nullptr) return;
              cluster.trainers().Kill(world->pids[cluster.sim().Pick(world->world_size)], 9);
            });
      }
    });
    cluster.sim().At(absl::Seconds(59), [&] {
      for (const auto& [sequence, job] : cluster.host().core().jobs()) {
        if (!job->spec().checkpoint.save.has_value() || job->iteration() == 0) continue;
        ++num_saving;
        num_recovered += job->restarts() > 0;
        if (job->state() != JobState::kCancelled || job->history().checkpoints().empty()) {
          cluster.sim().Wrong(absl::StrCat(job->job_id(), " was to save and stop and is ",
                                           JobStateName(job->state()), ": ", job->reason()));
        }
      }
    });
  };
  const SimCluster::Tally tally = RunSeeds(1, 60, options);
  EXPECT_EQ(tally.failed, 0);
  if (SeedCount(60) < 60) return;  // a kill in those 0.9 s is too rare to be among so few
  EXPECT_GT(num_saving, 0);
  EXPECT_GT(num_recovered, num_saving / 8);
}

TEST(CoordinatorDeathTest, TenMinutesAwayAreSurvived) {
  SimOptions options = Quiet();
  options.num_nodes = 6;
  options.max_slots = 1;
  options.people.max_world = 2;  // all of them run at once
  options.faulty = absl::Seconds(640);
  options.calm = absl::Seconds(600);
  options.people.min_iters = options.people.max_iters = 3500;  // about 700 s
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(20),
                     [&] { cluster.faults().CrashCoordinator(absl::Seconds(600)); });
  };
  ExpectNothingNoticed(RunSeeds(1, 3, options), options, SeedCount(3));
}

// All that can happen to the coordinator and its disk, and nothing else: no job may notice.
TEST(CoordinatorDeathTest, WhateverHappensToTheCoordinatorFailsNoJob) {
  SimOptions options = Quiet();
  options.num_jobs = 5;
  options.faults.pause = absl::Seconds(4);
  options.faults.longest_away = absl::Seconds(60);
  options.faults.weights = {.break_stream = 0,
                            .crash_agent = 0,
                            .terminate_agent = 0,
                            .freeze_agent = 0,
                            .kill_trainer = 0,
                            .freeze_trainer = 0,
                            .cut_one = 0,
                            .cut_all = 0,
                            .spill_full = 0,
                            .say_stale = 0,
                            .flood = 0,
                            .launch_fails = 0};
  const auto tally = RunSeeds(1, 100, options);
  EXPECT_EQ(tally.completed, 5 * SeedCount(100));
  EXPECT_EQ(tally.failed, 0);
  EXPECT_EQ(tally.new_incarnations, 0);
}

// For every write n of one run: the process dies before it, after it before anybody has heard, and
// in the midst of the replies.
TEST(CoordinatorDeathTest, ACrashAtEveryWriteLosesNothing) {
  SimOptions options = Quiet();
  options.seed = 5;
  options.num_nodes = 2;
  options.min_slots = options.max_slots = 2;
  options.num_jobs = 2;
  options.submits = absl::Seconds(1);
  options.faulty = absl::Seconds(8);
  options.people.max_world = 3;
  options.people.min_iters = 5;
  options.people.max_iters = 12;
  options.script = [](SimCluster& cluster) {
    cluster.sim().At(absl::Seconds(4), [&] {
      for (const std::string& job : cluster.people().jobs()) {
        cluster.people().Direct(job, Directive::Kind::kCheckpoint);
      }
    });
  };
  SimCluster whole(options);
  ASSERT_EQ(absl::StrJoin(whole.Run(), "\n"), "");
  const int64_t num_batches = whole.tally().batches;
  ASSERT_GT(num_batches, 20);
  int num_crashes = 0;
  for (int64_t write = 1; write <= num_batches; ++write) {
    for (const CrashPoint point :
         {CrashPoint::kBeforeWrite, CrashPoint::kAfterWrite, CrashPoint::kAmidReplies}) {
      options.crash_at = {write, point};
      SimCluster cluster(options);
      const std::string wrong = absl::StrJoin(cluster.Run(), "\n");
      ASSERT_EQ(wrong, "") << "write " << write << ", point " << static_cast<int>(point);
      ASSERT_EQ(cluster.tally().completed, 2) << "write " << write;
      ASSERT_EQ(cluster.tally().new_incarnations, 0) << "write " << write;
      num_crashes += cluster.tally().coordinator_lives - 1;
    }
  }
  std::printf("%d crashes at %d writes\n", num_crashes, static_cast<int>(num_batches));
  EXPECT_GT(num_crashes, 2 * num_batches);
}

}  // namespace
}  // namespace muster
