// Cordons, drains, quarantines and replacements through the whole core.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class HoldTest : public testing::Test {
 protected:
  absl::Status Do(const Event& event) { return cluster_.Handle(event).status; }
  std::string HoldOf(const std::string& worker) {
    return cluster_.core().membership().HoldOf(worker).Text();
  }
  const JobMachine& Job() const { return cluster_.Job(job_); }
  void Train(int ranks, int max_restarts = 3) {
    job_ =
        cluster_.Submit({.world_size = ranks, .train_iters = 1000, .max_restarts = max_restarts});
    cluster_.Phase(job_, "training");
    for (int i = 1; i <= 3; ++i) cluster_.Step(job_, i);
    ASSERT_EQ(Job().state(), JobState::kRunning);
  }
  // Spares get warm, all ranks come to the end of their step.
  void Yield() {
    for (const ExtraSlot& extra : std::vector<ExtraSlot>(Job().extras())) {
      const Agent* agent = cluster_.core().membership().FindAgent(extra.slot.incarnation);
      cluster_.Handle(ReportBatch{
          agent->stream,
          agent->reports_through + 1,
          {{{extra.slot.worker, job_, Job().epoch(), -1}, PhaseMessage{.phase = "warm"}}}});
    }
    cluster_.Advance(absl::Milliseconds(200));
    cluster_.Phase(job_, "yielded");
    cluster_.Advance(absl::Milliseconds(200));
  }

  CoreCluster cluster_;
  std::string job_;
};

TEST_F(HoldTest, AWorkerIsCordonedAndUncordoned) {
  cluster_.Join(1, 2);
  EXPECT_TRUE(Do(CordonWorker{"n1/0"}).ok());
  EXPECT_TRUE(Do(CordonWorker{"n1/0"}).ok());  // safe to repeat
  EXPECT_FALSE(cluster_.IsIdle("n1/0"));
  EXPECT_TRUE(cluster_.IsIdle("n1/1"));
  job_ = cluster_.Submit({.world_size = 2});
  EXPECT_THAT(Job().reason(), HasSubstr("waiting for 1 more (1 is cordoned); the cluster has only "
                                        "1: 1 must join or be uncordoned"));
  EXPECT_TRUE(Do(CordonWorker{"n1/0", true}).ok());
  EXPECT_EQ(Job().state(), JobState::kForming);
}

TEST_F(HoldTest, ANodeStandsForAllOfItsWorkers) {
  cluster_.Join(1, 2);
  cluster_.Join(2, 1);
  EXPECT_TRUE(Do(CordonWorker{"n1"}).ok());
  EXPECT_EQ(HoldOf("n1/0"), "cordoned");
  EXPECT_EQ(HoldOf("n1/1"), "cordoned");
  EXPECT_EQ(HoldOf("n2/0"), "");
  EXPECT_TRUE(Do(DrainWorker{"n1"}).ok());
  EXPECT_EQ(HoldOf("n1/1"), "draining");
  EXPECT_TRUE(Do(DrainWorker{"n1", true}).ok());
  EXPECT_EQ(HoldOf("n1/1"), "cordoned");  // a cordon of its own
  EXPECT_TRUE(Do(CordonWorker{"n1", true}).ok());
  EXPECT_EQ(HoldOf("n1/1"), "");
  const absl::Status unknown = Do(CordonWorker{"n7"});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"n7\" is no worker or node"));
}

TEST_F(HoldTest, ARankGoesOnWhenItsWorkerIsCordoned) {
  cluster_.Join(1);
  cluster_.Join(2);
  cluster_.Join(3);
  Train(2);
  EXPECT_TRUE(Do(CordonWorker{"n1/0"}).ok());
  cluster_.Advance(absl::Seconds(1));
  EXPECT_EQ(Job().epoch(), 1);
  EXPECT_FALSE(Job().change().has_value());
}

TEST_F(HoldTest, ADrainedNodesRanksMoveBetweenTwoSteps) {
  cluster_.Join(1, 2);
  cluster_.Join(2, 2);
  Train(2);
  const std::string from = Job().ranks()[0].node;
  EXPECT_TRUE(Do(DrainWorker{from}).ok());
  cluster_.Advance(absl::Milliseconds(200));
  ASSERT_TRUE(Job().change().has_value());
  Yield();
  EXPECT_EQ(Job().epoch(), 2);
  for (const RankSlot& slot : Job().ranks()) EXPECT_NE(slot.node, from);
  EXPECT_EQ(Job().restarts(), 0);  // nothing has failed
}

TEST_F(HoldTest, ARankIsReplacedByTheWorkerThatIsNamed) {
  for (int node = 1; node <= 4; ++node) cluster_.Join(node);
  Train(2);
  const std::string from = Job().ranks()[1].worker;
  const Outcome out =
      cluster_.Handle(ReplaceRank{.job_id = job_, .reason = "slow", .rank = 1, .worker = "n4/0"});
  ASSERT_TRUE(out.status.ok()) << out.status;
  EXPECT_EQ(std::get<ReplaceReply>(out.reply).from, from);
  EXPECT_EQ(std::get<ReplaceReply>(out.reply).to, "n4/0");
  Yield();
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Job().ranks()[1].worker, "n4/0");
}

TEST_F(HoldTest, AReplacementThatCannotBeSaysWhy) {
  for (int node = 1; node <= 3; ++node) cluster_.Join(node);
  Train(2);
  ASSERT_TRUE(Do(CordonWorker{"n3/0"}).ok());
  struct Row {
    ReplaceRank replace;
    absl::StatusCode code;
    const char* says;
  };
  const Row rows[] = {
      {{.job_id = "x"}, absl::StatusCode::kNotFound, "job \"x\" is not known"},
      {{.job_id = job_, .rank = 2}, absl::StatusCode::kInvalidArgument, "has ranks 0 to 1"},
      {{.job_id = job_, .rank = -1}, absl::StatusCode::kInvalidArgument, "has ranks 0 to 1"},
      {{.job_id = job_, .rank = 0}, absl::StatusCode::kFailedPrecondition, "0 spare or idle"},
      {{.job_id = job_, .worker = "n9"}, absl::StatusCode::kNotFound, "worker \"n9\" is not known"},
      {{.job_id = job_, .worker = "n3/0"},
       absl::StatusCode::kFailedPrecondition,
       "is cordoned; `muster uncordon n3/0`"},
      {{.job_id = job_, .worker = "n2/0"},
       absl::StatusCode::kFailedPrecondition,
       "is neither idle nor a spare"},
  };
  for (const Row& row : rows) {
    const absl::Status status = Do(row.replace);
    EXPECT_EQ(status.code(), row.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.says));
  }
  cluster_.Done(job_);
  EXPECT_EQ(Do(ReplaceRank{.job_id = job_}).code(), absl::StatusCode::kFailedPrecondition);
}

DeviceCheck Check(const std::string& fingerprint) {
  return {.device = "cpu", .kind = "Xeon", .fingerprint = fingerprint, .copy_gb_per_s = 10};
}

TEST_F(HoldTest, ADeviceThatFailsItsCheckIsQuarantinedUntilAPersonClearsIt) {
  RegisterAgent agent{.incarnation = "incarnation-1",
                      .node = "n1",
                      .version = "1",
                      .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}},
                      .checks = {Check("f1")}};
  ASSERT_TRUE(Do(agent).ok());
  ASSERT_TRUE(Do(OpenStream{agent.incarnation, 1}).ok());
  EXPECT_TRUE(cluster_.IsIdle("n1/0"));
  // Its process comes back, and the device computes something else.
  agent.incarnation = "incarnation-2";
  agent.checks = {Check("f2")};
  ASSERT_TRUE(Do(LeaveAgent{1}).ok());
  ASSERT_TRUE(Do(agent).ok());
  ASSERT_TRUE(Do(OpenStream{agent.incarnation, 2}).ok());
  EXPECT_FALSE(cluster_.IsIdle("n1/0"));
  EXPECT_THAT(HoldOf("n1/0"),
              HasSubstr("quarantined: a matrix product's fingerprint is f2, and was "
                        "f1 on this device before"));
  job_ = cluster_.Submit({.world_size = 1});
  EXPECT_THAT(Job().reason(), HasSubstr("1 is quarantined"));
  ASSERT_TRUE(Do(CordonWorker{"n1/0", true}).ok());
  EXPECT_EQ(Job().state(), JobState::kForming);
}

TEST_F(HoldTest, ACheckAfterAFaultQuarantinesTheWorkerThatTheJobHolds) {
  cluster_.Join(1);
  cluster_.Join(2);
  Train(2, 3);
  cluster_.Report(job_, 1, Check("f1"));
  EXPECT_EQ(HoldOf("n2/0"), "");
  cluster_.Report(job_, 1, Check("f2"));
  EXPECT_THAT(HoldOf("n2/0"), HasSubstr("quarantined"));
  bool told = false;
  for (const auto& entry : Job().history().events().entries()) {
    told = told || entry.value.kind == "quarantined";
  }
  EXPECT_TRUE(told);
}

TEST_F(HoldTest, HoldsOutliveTheCoordinatorAndTheAgent) {
  cluster_.Join(1, 3);
  ASSERT_TRUE(Do(CordonWorker{"n1/0"}).ok());
  ASSERT_TRUE(Do(DrainWorker{"n1/1"}).ok());
  ASSERT_TRUE(Do(DrainWorker{"n1/0"}).ok());
  cluster_.Handle(SubmitJob{});  // as any event would
  Coordinator again({});
  ASSERT_TRUE(again.Restore(cluster_.core().SaveAll(), cluster_.now()).ok());
  EXPECT_EQ(again.membership().HoldOf("n1/0"), (WorkerHold{.cordoned = true, .draining = true}));
  EXPECT_EQ(again.membership().HoldOf("n1/1"), (WorkerHold{.draining = true}));
  EXPECT_EQ(again.membership().HoldOf("n1/2"), WorkerHold{});
  // The agent leaves, and its workers come back under another one.
  cluster_.SayGoodbye(1);
  EXPECT_TRUE(Do(DrainWorker{"n1/1", true}).ok());  // known by its hold
  cluster_.Handle(RegisterAgent{
      .incarnation = "incarnation-9",
      .node = "n1",
      .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}, {"n1/1", "cpu", DeviceKind::kCpu, 1}}});
  EXPECT_TRUE(cluster_.core().membership().FindWorker("n1/0")->hold.cordoned);
  EXPECT_FALSE(cluster_.core().membership().FindWorker("n1/1")->hold.any());
}

}  // namespace
}  // namespace muster
