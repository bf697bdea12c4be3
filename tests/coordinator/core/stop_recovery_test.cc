// Failures of a job that is on its way to save and stop: it recovers, and the stop stands.
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class StopRecoveryTest : public testing::Test {
 protected:
  void Start(const TestSpecOptions& spec = {
                 .save = "/ckpt", .train_iters = 1000, .max_restarts = 3}) {
    for (int node : {1, 2}) cluster_.Join(node);
    job_ = cluster_.Submit(spec);
    cluster_.Phase(job_, "training");
    Step(1, 0);
  }
  const JobMachine& Job() { return cluster_.Job(job_); }
  void Step(int64_t iteration, int64_t applied) {
    StepMessage step;
    step.iteration = iteration;
    step.applied_directive = applied;
    cluster_.Report(job_, 1, step);
  }
  void CancelAndSave() {
    cluster_.Handle(CancelJob{job_, "enough", CancelMode::kCheckpointAndStop});
  }
  void Kill(int rank) { cluster_.Report(job_, rank, ExitedReport{.signal = 9}); }
  void ComeThrough() {
    cluster_.Phase(job_, "forming");
    cluster_.Phase(job_, "training");
    ASSERT_EQ(Job().state(), JobState::kRunning);
  }
  // Those of this epoch, as one of its agents has got them.
  std::vector<Directive> Directives() {
    std::vector<Directive> found;
    for (const auto& sent : cluster_.Sent<DirectiveBroadcast>(1)) {
      if (sent.epoch == Job().epoch()) found.push_back(sent.directive);
    }
    return found;
  }
  void Obey() {
    cluster_.Report(job_, 0, PhaseMessage{.phase = "saving"});
    cluster_.Report(job_, 0, CheckpointMessage{.iteration = 2, .path = "/ckpt", .ok = true});
    cluster_.Done(job_);
  }

  CoreCluster cluster_;
  std::string job_;
};

TEST_F(StopRecoveryTest, BeforeAnyStepHasAppliedIt) {
  Start();
  CancelAndSave();
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Job().epoch(), 2);
  ASSERT_EQ(Directives().size(), 1u);
  EXPECT_EQ(Directives()[0].number, 1);
  EXPECT_EQ(Directives()[0].kind, Directive::Kind::kCheckpointAndStop);
  ComeThrough();
  EXPECT_TRUE(Job().cancelling());
  Step(2, 1);
  Obey();
  EXPECT_EQ(Job().state(), JobState::kCancelled);
  EXPECT_EQ(Job().reason(), "cancelled: enough");
}

TEST_F(StopRecoveryTest, WhileItSaves) {
  Start();
  CancelAndSave();
  Step(2, 1);
  cluster_.Report(job_, 0, PhaseMessage{.phase = "saving"});
  EXPECT_EQ(Job().state(), JobState::kCheckpointing);
  Kill(0);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  // It counts as applied, and its step may be gone: the next epoch gets it as a new one.
  ASSERT_EQ(Directives().size(), 1u);
  EXPECT_EQ(Directives()[0].number, 2);
  EXPECT_EQ(Directives()[0].kind, Directive::Kind::kCheckpointAndStop);
  EXPECT_EQ(cluster_.Sent<LaunchMessage>(1).back().directives_through, 1);
  ComeThrough();
  Kill(1);  // once more, and it was not applied in between
  ASSERT_EQ(Directives().size(), 1u);
  EXPECT_EQ(Directives()[0].number, 2);
  ComeThrough();
  Obey();
  EXPECT_EQ(Job().state(), JobState::kCancelled);
}

TEST_F(StopRecoveryTest, WhenOneIsDoneAlready) {
  Start();
  CancelAndSave();
  Step(2, 1);
  cluster_.Report(job_, 0, DoneMessage{.reason = "stop"});
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Directives().size(), 1u);
  ComeThrough();
  Obey();
  EXPECT_EQ(Job().state(), JobState::kCancelled);
}

TEST_F(StopRecoveryTest, AStopThatNobodyCancelledForStandsToo) {
  Start();
  ASSERT_TRUE(
      cluster_
          .Handle(RequestDirective{
              .job_id = job_, .reason = "the night is over", .kind = Directive::Kind::kStop})
          .status.ok());
  Step(2, 1);
  Kill(1);
  ASSERT_EQ(Directives().size(), 1u);
  EXPECT_EQ(Directives()[0].number, 2);
  EXPECT_EQ(Directives()[0].kind, Directive::Kind::kStop);
  EXPECT_EQ(Directives()[0].reason, "the night is over");
  ComeThrough();
  cluster_.Done(job_);
  EXPECT_EQ(Job().state(), JobState::kCompleted);
}

TEST_F(StopRecoveryTest, AskedForWhileItRecovers) {
  Start();
  cluster_.SetObedient(false);
  cluster_.Report(job_, 1, FailedMessage{.reason = "out of memory"});  // its end is waited for
  ASSERT_EQ(Job().state(), JobState::kRecovering);
  ASSERT_EQ(Job().epoch(), 1);
  CancelAndSave();
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_THAT(Directives(), IsEmpty());
  Kill(1);
  ASSERT_EQ(Job().epoch(), 2);
  ASSERT_EQ(Directives().size(), 1u);
  ComeThrough();
  Step(2, 1);
  Obey();
  EXPECT_EQ(Job().state(), JobState::kCancelled);
}

TEST_F(StopRecoveryTest, AskedForWhileACauseIsSought) {
  Start();
  cluster_.Report(job_, 0, FailedMessage{.reason = "all-reduce: reset", .collective = true});
  CancelAndSave();
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Directives().size(), 1u);
}

TEST_F(StopRecoveryTest, WithoutAFolderThereIsNothingToRecoverFor) {
  Start({.train_iters = 1000, .max_restarts = 3});
  CancelAndSave();
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kCancelled);
  EXPECT_THAT(Job().reason(), HasSubstr("cancelled: enough; on the way: rank 1 ("));
}

TEST_F(StopRecoveryTest, AStopWithoutASaveNeedNotSucceed) {
  Start();
  cluster_.Handle(CancelJob{job_, "enough", CancelMode::kStop});
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kCancelled);
}

TEST_F(StopRecoveryTest, WhatCannotRecoverFailsAndSaysWhatItWasUpTo) {
  Start();
  for (int i = 0; i < 3; ++i) {
    Kill(1);
    ComeThrough();
    Step(2 + i, 0);
  }
  CancelAndSave();
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(), HasSubstr("; on the way to save and stop: cancelled: enough"));
}

TEST_F(StopRecoveryTest, AJobThatFindsNoWorkerFailsWithTheReason) {
  Start();
  CancelAndSave();
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(5));
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  cluster_.Advance(absl::Minutes(11), absl::Milliseconds(400));
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(), HasSubstr("no workers came within 10m"));
}

}  // namespace
}  // namespace muster
