// A coordinator that is restarted in the midst of a recovery, or while something fails: it plans as
// soon as what the job needs is there, gives up only whom the job cannot do without, and nobody
// whose job may train.
#include "tests/coordinator/core/restart_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;

class RestartRecoveryTest : public RestartTest {
 protected:
  // Nodes 1 to `nodes` of one worker; ranks are on the first of them, in order.
  void Begin(const TestSpecOptions& spec, int nodes) {
    for (int node = 1; node <= nodes; ++node) Join(node);
    job_ = Submit(spec);
    for (const char* phase : {"forming", "training"}) Phase(phase);
    Step(1);
    ASSERT_EQ(Job(job_).state(), JobState::kRunning);
  }
  int NodeOf(int rank) { return Job(job_).ranks()[rank].node.back() - '0'; }
  void Say(int rank, const ReportBody& body) { Report(NodeOf(rank), job_, rank, body); }
  void Phase(const std::string& phase) {
    for (int rank = 0; rank < Job(job_).world_size(); ++rank)
      Say(rank, PhaseMessage{.phase = phase});
  }
  void Step(int64_t iteration) {
    StepMessage step;
    step.iteration = iteration;
    Say(Job(job_).world_size() - 1, step);
  }
  // Dies with the process that it tells nobody of.
  void LoseNode(int node) { beating_.erase(node); }

  std::string job_;
};

TEST_F(RestartRecoveryTest, ADeathThatIsReportedAfterItIsPlannedForAtOnce) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  Join(3);  // of no interest to the job, and it stays away
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  Advance(absl::Milliseconds(100));
  Say(0, ExitedReport{.signal = 9});
  EXPECT_EQ(Job(job_).state(), JobState::kRecovering);
  Advance(absl::Milliseconds(500));
  EXPECT_EQ(Job(job_).epoch(), 1);  // the other rank may live
  ASSERT_TRUE(Connect(2).ok());
  Advance(absl::Milliseconds(100));
  EXPECT_EQ(Job(job_).epoch(), 2);
  EXPECT_EQ(Job(job_).ranks()[0].worker, "n1/0");
  EXPECT_EQ(AgentOn(3).state, AgentState::kSuspect);
}

TEST_F(RestartRecoveryTest, AnOpenIncidentIsTakenUpWhenItsAgentsAreBack) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  // The death is written, and its plan dies with the coordinator.
  const AssignmentRef from{Job(job_).ranks()[1].worker, job_, 1, 1};
  core_->Handle(ReportBatch{2, ++sequence_[2], {{from, FailedMessage{.reason = "bad"}}}}, now_);
  Write();
  ASSERT_EQ(Job(job_).state(), JobState::kRecovering);
  ASSERT_EQ(Job(job_).epoch(), 1);
  Restart();
  ASSERT_TRUE(Connect(2).ok());
  Report(2, job_, 1, ExitedReport{.signal = 9});
  Advance(absl::Milliseconds(200));
  EXPECT_EQ(Job(job_).epoch(), 1);
  ASSERT_TRUE(Connect(1).ok());
  Advance(absl::Milliseconds(100));
  EXPECT_EQ(Job(job_).epoch(), 2);
}

TEST_F(RestartRecoveryTest, WhoKeepsARecoveryWaitingIsGivenUpAfterItsTimeoutAndAMargin) {
  Begin({.spares = 1, .train_iters = 1000, .max_restarts = 3}, 3);
  LoseNode(2);
  Say(0, FailedMessage{.reason = "all-reduce: connection reset", .collective = true});
  ASSERT_TRUE(Job(job_).aborted());
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  ASSERT_TRUE(Connect(3).ok());
  Advance(absl::Milliseconds(4400));
  EXPECT_EQ(AgentOn(2).state, AgentState::kSuspect);
  EXPECT_EQ(Job(job_).epoch(), 1);
  Advance(absl::Milliseconds(700));
  EXPECT_EQ(AgentOn(2).state, AgentState::kLost);
  ASSERT_EQ(Job(job_).epoch(), 2);
  EXPECT_EQ(Job(job_).ranks()[1].worker, "n3/0");
  EXPECT_THAT(Job(job_).cause()->text,
              HasSubstr("it did not come back after the coordinator's restart: no sign of life"));
}

TEST_F(RestartRecoveryTest, AnAgentOfAJobThatTrainsHasItsWholeTime) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  Advance(absl::Seconds(50));
  EXPECT_EQ(AgentOn(2).state, AgentState::kSuspect);
  EXPECT_EQ(Job(job_).epoch(), 1);
  ASSERT_TRUE(Connect(2).ok());
  EXPECT_EQ(Job(job_).restarts(), 0);
}

TEST_F(RestartRecoveryTest, AnAgentThatAlsoServesAJobThatTrainsHasItsWholeTime) {
  Join(1, 2);
  Join(2, 2);
  job_ = Submit({.world_size = 3, .train_iters = 1000, .max_restarts = 3});
  const std::string other = Submit({.world_size = 1, .train_iters = 1000, .max_restarts = 3});
  const int shared = Job(other).ranks()[0].node == "n1" ? 1 : 2;
  Phase("training");
  Report(shared, other, 0, PhaseMessage{.phase = "training"});
  int rank = 0;
  while (NodeOf(rank) == shared) ++rank;
  Say(rank, FailedMessage{.reason = "all-reduce: connection reset", .collective = true});
  Restart();
  ASSERT_TRUE(Connect(3 - shared).ok());
  Advance(absl::Seconds(30));
  EXPECT_EQ(AgentOn(shared).state, AgentState::kSuspect);
  EXPECT_EQ(Job(other).restarts(), 0);
}

TEST_F(RestartRecoveryTest, WhenNobodyComesBackNobodyIsGivenUp) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  Say(0, FailedMessage{.reason = "all-reduce: connection reset", .collective = true});
  Restart();
  Advance(absl::Seconds(55));  // it is rather the coordinator that is cut off
  EXPECT_EQ(AgentOn(1).state, AgentState::kSuspect);
  EXPECT_EQ(AgentOn(2).state, AgentState::kSuspect);
  ASSERT_TRUE(Connect(1).ok());
  ASSERT_TRUE(Connect(2).ok());
  Advance(absl::Seconds(4));
  EXPECT_EQ(Job(job_).epoch(), 2);  // a symptom without a cause: all form again
  EXPECT_EQ(Job(job_).num_launched(), 2);
}

TEST_F(RestartRecoveryTest, ARecoveryThatFormsIsNotKeptWaiting) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  Say(1, ExitedReport{.signal = 9});
  ASSERT_EQ(Job(job_).epoch(), 2);
  Say(0, PhaseMessage{.phase = "forming"});
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  Advance(absl::Seconds(6));
  EXPECT_EQ(AgentOn(2).state, AgentState::kLost);
}

// All have come through once one of them trains, whoever can be heard.
TEST_F(RestartRecoveryTest, ARecoveryThatHasComeThroughIsLeftAlone) {
  Begin({.train_iters = 1000, .max_restarts = 3}, 2);
  Say(1, ExitedReport{.signal = 9});
  ASSERT_EQ(Job(job_).epoch(), 2);
  Say(0, PhaseMessage{.phase = "training"});
  ASSERT_EQ(Job(job_).state(), JobState::kRecovering);
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  Advance(absl::Seconds(50));
  EXPECT_EQ(AgentOn(2).state, AgentState::kSuspect);
  EXPECT_EQ(Job(job_).restarts(), 1);
}

class RestartElasticTest : public RestartRecoveryTest {
 protected:
  // Rank 1's node is lost, and before anything is planned the coordinator dies; rank 0 is back.
  void SetUp() override {
    Begin({.spares = 1, .train_iters = 1000, .max_restarts = 3, .elastic = true}, 3);
    Say(0, FailedMessage{.reason = "out of memory"});  // its end is waited for
    beating_.erase(2);
    ASSERT_TRUE(Handle(LeaveAgent{2, "switched off"}).status.ok());
    ASSERT_EQ(Job(job_).state(), JobState::kRecovering);
    ASSERT_EQ(Job(job_).epoch(), 1);
    Restart();
    ASSERT_TRUE(Connect(1).ok());
    Say(0, ExitedReport{.signal = 9});
    Advance(absl::Seconds(2));
    EXPECT_EQ(Job(job_).epoch(), 1);
  }
};

TEST_F(RestartElasticTest, ItDoesNotShrinkWhileItsSpareMayComeBack) {
  ASSERT_TRUE(Connect(3).ok());
  Advance(absl::Milliseconds(100));
  ASSERT_EQ(Job(job_).epoch(), 2);
  EXPECT_EQ(Job(job_).world_size(), 2);
  EXPECT_EQ(Job(job_).ranks()[1].worker, "n3/0");
}

TEST_F(RestartElasticTest, ItShrinksWhenTheSpareStaysAwayAndKeepsIt) {
  Advance(absl::Seconds(3));
  ASSERT_EQ(Job(job_).epoch(), 2);
  EXPECT_EQ(Job(job_).world_size(), 1);
  EXPECT_EQ(Job(job_).num_spares(), 1);
  ASSERT_TRUE(Connect(3).ok());
  EXPECT_EQ(Sent<LaunchMessage>(3).at(0).assignments.at(0).rank, -1);
}

}  // namespace
}  // namespace muster
