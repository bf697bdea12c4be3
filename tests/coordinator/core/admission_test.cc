// Several jobs on one set of workers, through the whole core: who starts when, and what those that
// wait say while the cluster changes.
#include <random>

#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AdmissionTest : public testing::Test {
 protected:
  JobState State(const std::string& job) { return cluster_.Job(job).state(); }
  const std::string& Reason(const std::string& job) { return cluster_.Job(job).reason(); }
  void Finish(const std::string& job) {
    cluster_.Step(job, 10);
    cluster_.Done(job);
  }
  CoreCluster cluster_;
};

TEST_F(AdmissionTest, AJobThatWaitsSaysAtEveryMomentWhatItLacks) {
  const std::string job = cluster_.Submit({.world_size = 3});
  const auto lacks = [&](const char* text) {
    EXPECT_THAT(Reason(job), HasSubstr(text));
    EXPECT_EQ(State(job), JobState::kQueued);
  };
  lacks("have 0 of 3 cpu workers; waiting for 3 more; the cluster has only 0: 3 must join");
  cluster_.Join(1, 2, DeviceKind::kCuda);
  lacks("(there are 2 cuda workers: resources.device may be wrong)");
  cluster_.Join(2);
  cluster_.Join(3);
  lacks("have 2 of 3 cpu workers; waiting for 1 more; the cluster has only 2: 1 must join");
  cluster_.Handle(DrainWorker{.worker = "n3/0"});
  lacks("have 1 of 3 cpu workers; waiting for 2 more (1 is draining)");
  cluster_.Handle(DrainWorker{.worker = "n3/0", .undo = true});
  cluster_.Join(4);
  EXPECT_EQ(State(job), JobState::kForming);

  const std::string second = cluster_.Submit({.world_size = 2});
  EXPECT_THAT(Reason(second), HasSubstr(absl::StrCat("(3 are busy: ", job, " holds 3)")));
  const std::string third = cluster_.Submit();
  EXPECT_EQ(Reason(third),
            absl::StrCat("needs 2 cpu workers; waits behind ", second, ", which lacks 2"));
  // Its trainers have not ended: their workers are not idle yet.
  cluster_.SetObedient(false);
  cluster_.Handle(CancelJob{job, "", CancelMode::kKill});
  EXPECT_THAT(Reason(second), HasSubstr("holds 3 until its trainers have ended"));
  for (int rank = 0; rank < 3; ++rank) cluster_.Report(job, rank, ExitedReport{.signal = 15});
  EXPECT_EQ(State(second), JobState::kForming);
  EXPECT_THAT(Reason(third), HasSubstr("have 1 of 2 cpu workers; waiting for 1 more (2 are busy"));
}

TEST_F(AdmissionTest, AWorkerThatIsNotHeardForAMomentIsSaid) {
  cluster_.Join(1);
  cluster_.Join(2);
  cluster_.Handle(CloseStream{CoreCluster::StreamOf(2)});
  const std::string job = cluster_.Submit();
  EXPECT_THAT(Reason(job), HasSubstr("waiting for 1 more (1 is not heard now)"));
  ASSERT_TRUE(cluster_.Handle(OpenStream{"incarnation-2", 2}).status.ok());
  EXPECT_EQ(State(job), JobState::kForming);
}

TEST_F(AdmissionTest, WhileTheJournalCannotBeWrittenNothingStartsAndEachSaysWhy) {
  cluster_.Join(1, 2);
  cluster_.Handle(StorageState{.writable = false, .reason = "the journal's disk is full"});
  EXPECT_FALSE(cluster_.Handle(SubmitJob{.spec_json = TestSpec()}).status.ok());
  cluster_.Handle(StorageState{.writable = true});
  const std::string running = cluster_.Submit();
  const std::string waiting = cluster_.Submit();
  cluster_.Handle(StorageState{.writable = false, .reason = "the journal's disk is full"});
  EXPECT_EQ(Reason(waiting),
            "no job is started now: the journal's disk is full; needs 2 cpu workers");
  Finish(running);  // what runs goes on
  EXPECT_EQ(State(running), JobState::kCompleted);
  EXPECT_EQ(State(waiting), JobState::kQueued);
  cluster_.Handle(StorageState{.writable = true});
  EXPECT_EQ(State(waiting), JobState::kForming);
}

TEST_F(AdmissionTest, EqualPriorityIsFirstInFirstOutAndHigherGoesFirst) {
  cluster_.Join(1, 2);
  const std::string running = cluster_.Submit();
  const std::string a = cluster_.Submit();
  const std::string b = cluster_.Submit();
  const std::string urgent = cluster_.Submit({.priority = 5});
  for (const auto& [ends, starts] :
       {std::pair(running, urgent), std::pair(urgent, a), std::pair(a, b)}) {
    Finish(ends);
    EXPECT_EQ(State(starts), JobState::kForming);
  }
}

TEST_F(AdmissionTest, SmallJobsDoNotStarveALargeOne) {
  for (int node = 1; node <= 4; ++node) cluster_.Join(node);
  std::vector<std::string> small = {cluster_.Submit(), cluster_.Submit()};
  const std::string large = cluster_.Submit({.world_size = 4});
  for (int i = 0; i < 5; ++i) small.push_back(cluster_.Submit());
  Finish(small[0]);
  EXPECT_EQ(State(large), JobState::kQueued);
  EXPECT_EQ(State(small[2]), JobState::kQueued);  // two idle workers wait for the large one
  Finish(small[1]);
  EXPECT_EQ(State(large), JobState::kForming);
}

TEST_F(AdmissionTest, AJobLargerThanTheClusterHoldsBackNobodyUntilTheClusterHasGrown) {
  cluster_.Join(1, 2);
  const std::string huge = cluster_.Submit({.world_size = 4});
  const std::string small = cluster_.Submit();
  EXPECT_EQ(State(small), JobState::kForming);
  cluster_.Join(2, 2);
  EXPECT_EQ(State(huge), JobState::kQueued);
  const std::string later = cluster_.Submit();
  EXPECT_EQ(State(later), JobState::kQueued);  // now the huge one could start, and comes first
  Finish(small);
  EXPECT_EQ(State(huge), JobState::kForming);
}

TEST_F(AdmissionTest, WorkersThatComeOrGoBesideAJobDoNotTouchIt) {
  cluster_.Join(1, 2);
  const std::string job = cluster_.Submit();
  cluster_.Phase(job, "training");
  const int64_t version = cluster_.Job(job).version();
  cluster_.Join(2, 4);  // more than anybody asked for: they wait
  cluster_.Join(3);
  cluster_.SayGoodbye(2);
  cluster_.Die(3);
  cluster_.Advance(absl::Seconds(5));
  EXPECT_EQ(State(job), JobState::kRunning);
  EXPECT_EQ(cluster_.Job(job).version(), version);
  EXPECT_EQ(cluster_.Sent<AbortBroadcast>(1).size(), 0u);
}

TEST_F(AdmissionTest, DeviceKindsAreApart) {
  cluster_.Join(1, 2, DeviceKind::kCuda);
  cluster_.Join(2);
  const std::string waits = cluster_.Submit();
  EXPECT_EQ(State(waits), JobState::kQueued);
  cluster_.Join(3);
  EXPECT_EQ(State(waits), JobState::kForming);
  for (const RankSlot& slot : cluster_.Job(waits).ranks()) EXPECT_EQ(slot.device, "cpu");
}

// Many jobs with random sizes, priorities and fates; the checker of CoreCluster sees that no worker
// is given twice.
TEST_F(AdmissionTest, ManyJobsShareTheWorkersAndAllEnd) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto pick = [&](int below) { return static_cast<int>(random() % below); };
    CoreCluster cluster;
    for (int node = 1; node <= 5; ++node) cluster.Join(node, 1 + pick(3));
    std::vector<std::string> jobs;
    for (int round = 0; round < 400; ++round) {
      if (jobs.size() < 40 && pick(3) == 0) {
        jobs.push_back(cluster.Submit({.world_size = 1 + pick(5),
                                       .spares = pick(2),
                                       .priority = pick(3),
                                       .save = pick(2) == 0 ? "/ckpt" : "",
                                       .max_restarts = pick(3)}));
      }
      for (const std::string& id : jobs) {
        const JobMachine& job = cluster.Job(id);
        if (job.ended()) continue;
        if (job.state() == JobState::kQueued) {
          EXPECT_NE(job.reason(), "");
          if (pick(60) == 0) cluster.Handle(CancelJob{id, "", CancelMode::kStop});
          continue;
        }
        switch (pick(12)) {
          case 0:
            cluster.Report(id, pick(job.world_size()), ExitedReport{.signal = 9});
            break;
          case 1:
            cluster.Handle(CancelJob{id, "", CancelMode::kKill});
            break;
          case 2:
          case 3:
            if (job.aborted()) break;  // it waits for workers
            cluster.Step(id, 10);
            cluster.Done(id);
            break;
          default:
            cluster.Phase(id, "training");
        }
      }
      cluster.Advance(absl::Milliseconds(200));
    }
    EXPECT_EQ(jobs.size(), 40u);
    int num_ended = 0;
    for (int node = 1; node <= 5; ++node)
      EXPECT_TRUE(cluster.IsIdle(absl::StrCat("n", node, "/0")));
    for (const std::string& id : jobs) num_ended += cluster.Job(id).released();
    EXPECT_EQ(num_ended, 40);
  }
}

}  // namespace
}  // namespace muster
