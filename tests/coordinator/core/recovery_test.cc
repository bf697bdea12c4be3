// What a job does when something fails: who gets which rank, what agents are told, what is counted.
#include "absl/strings/match.h"
#include "coordinator/core/drain_text.h"
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class RecoveryTest : public testing::Test {
 protected:
  // Nodes 1 to `nodes` with `slots` workers each; the job trains and has committed `steps`.
  void Train(const TestSpecOptions& spec, int nodes, int slots, int steps = 3) {
    for (int node = 1; node <= nodes; ++node) cluster_.Join(node, slots);
    job_ = cluster_.Submit(spec);
    cluster_.Phase(job_, "forming");
    cluster_.Phase(job_, "training");
    for (int i = 1; i <= steps; ++i) cluster_.Step(job_, i);
    ASSERT_EQ(Job().state(), JobState::kRunning);
  }
  const JobMachine& Job() { return cluster_.Job(job_); }
  const RankSlot& Rank(int rank) { return Job().ranks()[rank]; }
  void Kill(int rank) { cluster_.Report(job_, rank, ExitedReport{.signal = 9}); }
  // The ranks of a new epoch come through.
  void ComeThrough(int64_t restored_at, const std::string& source = "live") {
    cluster_.Report(job_, 0, PublishUniqueIdMessage{.id = "abcd"});
    cluster_.Phase(job_, "forming");
    cluster_.Phase(job_, "restoring");
    cluster_.Report(
        job_, 0,
        RestoredMessage{.iteration = restored_at, .source = source, .form_ms = 60, .state_ms = 20});
    cluster_.Phase(job_, "training");
  }
  std::vector<std::string> Events(const std::string& kind) {
    std::vector<std::string> found;
    for (const auto& entry : Job().history().events().entries()) {
      if (entry.value.kind == kind) found.push_back(entry.value.text);
    }
    return found;
  }
  LaunchMessage LastLaunch(int node) { return cluster_.Sent<LaunchMessage>(node).back(); }

  CoreCluster cluster_;
  std::string job_;
};

TEST_F(RecoveryTest, AKilledTrainerIsStartedAgainOnItsWorker) {
  Train({.max_restarts = 3}, 2, 1);
  Kill(1);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Job().restarts(), 1);
  EXPECT_FALSE(Job().aborted());
  for (int node : {1, 2}) {
    ASSERT_EQ(cluster_.Sent<LaunchMessage>(node).size(), 2u);
    EXPECT_EQ(LastLaunch(node).epoch, 2);
    EXPECT_EQ(LastLaunch(node).ledger_through, 3);
    EXPECT_EQ(LastLaunch(node).num_helpers, 0);
    EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(node), IsEmpty());
  }
  ASSERT_EQ(cluster_.Sent<AbortBroadcast>(1).size(), 1u);
  EXPECT_EQ(cluster_.Sent<AbortBroadcast>(1)[0].epoch, 1);
  EXPECT_EQ(Rank(1).worker, "n2/0");
  cluster_.Advance(absl::Milliseconds(300));
  ComeThrough(3);
  EXPECT_EQ(Job().state(), JobState::kRunning);
  cluster_.Step(job_, 4);
  ASSERT_EQ(Events("recovered").size(), 1u);
  EXPECT_THAT(Events("recovered")[0],
              AllOf(StartsWith("rank 1 in place on n2/0; total=0.3s abort=0s plan=0s process=0.3s "
                               "form=0.06s state=0.02s first_step=0s"),
                    HasSubstr("from live state at iteration 3, steps_redone=0")));
  EXPECT_EQ(Job().totals().count_by_kind.at("in_place"), 1);
  EXPECT_EQ(Job().reason(), "");
  cluster_.Done(job_);
  EXPECT_EQ(Job().state(), JobState::kCompleted);
}

TEST_F(RecoveryTest, AllRanksOfANodeAreOnePlan) {
  Train({.world_size = 4, .max_restarts = 1}, 4, 2);
  ASSERT_EQ(Rank(0).node, Rank(1).node);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(3));
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Job().restarts(), 1);
  for (int rank = 0; rank < 4; ++rank) EXPECT_NE(Rank(rank).node, "n2");
}

TEST_F(RecoveryTest, AFailureDuringRecoveryStartsItAgain) {
  Train({.world_size = 3, .max_restarts = 1}, 3, 1);
  Kill(1);
  cluster_.Phase(job_, "forming");
  Kill(2);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Job().epoch(), 3);
  ComeThrough(3);
  cluster_.Step(job_, 4);
  EXPECT_EQ(Job().state(), JobState::kRunning);
  EXPECT_THAT(Job().cause()->text, StartsWith("rank 1 ("));
  EXPECT_EQ(Events("recovered").size(), 1u);
}

TEST_F(RecoveryTest, WhatAnOlderEpochSaysIsDroppedButForItsSteps) {
  Train({.max_restarts = 3}, 2, 1);
  Kill(0);
  StepMessage step;
  step.iteration = 4;
  cluster_.Handle(ReportBatch{2, 100, {{{"n2/0", job_, 1, 1}, step}}});
  EXPECT_EQ(Job().iteration(), 0 + 3);  // a gap in the batches: nothing was taken
  cluster_.ReportAs("n2/0", {"n2/0", job_, 1, 1}, step);
  EXPECT_EQ(Job().iteration(), 4);
  EXPECT_EQ(Job().history().FindStep(4)->epoch, 1);
  cluster_.ReportAs("n2/0", {"n2/0", job_, 1, 1}, PhaseMessage{.phase = "training"});
  EXPECT_EQ(Rank(1).phase, "launched");
}

TEST_F(RecoveryTest, ASymptomWithoutACauseFormsAllAgain) {
  Train({.max_restarts = 3}, 2, 1);
  cluster_.Report(job_, 0, FailedMessage{.reason = "all-reduce: reset", .collective = true});
  EXPECT_TRUE(Job().aborted());
  EXPECT_EQ(Job().epoch(), 1);
  cluster_.Advance(absl::Seconds(3));
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_THAT(Events("restarting"), ElementsAre("epoch 2: all trainers live"));
}

TEST_F(RecoveryTest, ARankThatCannotGoOnGetsANewProcessOnceItHasEnded) {
  cluster_.SetObedient(false);
  Train({.max_restarts = 3}, 2, 1);
  cluster_.Report(job_, 1, FailedMessage{.reason = "out of memory"});
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_EQ(Job().epoch(), 1);
  ASSERT_EQ(cluster_.Sent<StopTrainerMessage>(2).size(), 1u);
  EXPECT_THAT(cluster_.Sent<StopTrainerMessage>(1), IsEmpty());
  cluster_.Report(job_, 1, ExitedReport{.signal = 9});
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Rank(1).worker, "n2/0");
}

TEST_F(RecoveryTest, ATrainerWhoseEndIsNotHeardOfIsLeftBehindWithItsWorker) {
  cluster_.SetObedient(false);
  Train({.max_restarts = 3}, 3, 1);
  const std::string left = Rank(1).worker;
  cluster_.Report(job_, 1, FailedMessage{.reason = "out of memory"});
  cluster_.Advance(absl::Seconds(11));
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_NE(Rank(1).worker, left);
  EXPECT_FALSE(cluster_.IsIdle(left));
  cluster_.ReportFrom(left, ExitedReport{.signal = 9});
  EXPECT_TRUE(cluster_.IsIdle(left));
  EXPECT_EQ(Job().epoch(), 2);
}

TEST_F(RecoveryTest, WhatIsWrongAtTheFirstStartFailsAtOnce) {
  for (int node : {1, 2}) cluster_.Join(node);
  job_ = cluster_.Submit({.max_restarts = 3});
  cluster_.Phase(job_, "loading");
  cluster_.Report(job_, 0, FailedMessage{.reason = "plugin: no provider of that name"});
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(), HasSubstr("no provider of that name"));
}

TEST_F(RecoveryTest, ATrainerThatCannotBeStartedAtFirstFailsTheJobAtOnce) {
  for (int node : {1, 2}) cluster_.Join(node);
  job_ = cluster_.Submit({.max_restarts = 3});
  cluster_.Report(job_, 0, ExitedReport{.launch_error = "/ckpt is still not seen by n2"});
  EXPECT_EQ(Job().state(), JobState::kFailed);
}

TEST_F(RecoveryTest, AnAgentThatIsEndingIsNoFaultOfTheJob) {
  for (int node : {1, 2, 3}) cluster_.Join(node);
  job_ = cluster_.Submit({.max_restarts = 3});
  cluster_.Report(job_, 0, ExitedReport{.launch_error = "the worker's agent is ending"});
  EXPECT_EQ(Job().state(), JobState::kRecovering);
}

TEST_F(RecoveryTest, ACrashAtTheFirstStartIsRecovered) {
  for (int node : {1, 2}) cluster_.Join(node);
  job_ = cluster_.Submit({.max_restarts = 3});
  cluster_.Phase(job_, "loading");
  Kill(0);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  ComeThrough(0, "beginning");
  cluster_.Step(job_, 1);
  EXPECT_EQ(Job().state(), JobState::kRunning);
}

TEST_F(RecoveryTest, TheBudgetEndsItWithTheFirstCauseAndWhatFollowed) {
  Train({.max_restarts = 1}, 2, 1);
  Kill(1);
  cluster_.Report(job_, 0, ExitedReport{.signal = 11});  // the same incident
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  ComeThrough(3);
  cluster_.Step(job_, 4);
  Kill(0);
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(), AllOf(StartsWith("rank 1 ("), HasSubstr("recovery.max_restarts=1")));
  EXPECT_EQ(Job().cause()->rank, 1);
}

TEST_F(RecoveryTest, ASpareTakesTheRankOfALostNode) {
  Train({.spares = 1, .max_restarts = 3}, 3, 1);
  ASSERT_EQ(Job().num_spares(), 1);
  const std::string spare = Job().extras()[0].slot.worker;
  EXPECT_EQ(LastLaunch(3).assignments[0].rank, -1);
  cluster_.ReportFrom(spare, PhaseMessage{.phase = "spare"});
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(3));
  ASSERT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Rank(1).worker, spare);
  EXPECT_EQ(LastLaunch(3).assignments[0].rank, 1);
  EXPECT_EQ(Job().num_spares(), 0);
  ComeThrough(3);
  cluster_.Step(job_, 4);
  cluster_.Join(4);  // kept at resources.spares
  cluster_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(Job().num_spares(), 1);
  EXPECT_EQ(LastLaunch(4).epoch, 2);
  EXPECT_EQ(LastLaunch(4).assignments[0].rank, -1);
}

TEST_F(RecoveryTest, WithoutAWorkerItWaitsAndThenFailsWithTheReason) {
  Train({.max_restarts = 3, .wait_for_workers_s = 30}, 2, 1);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(5));
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_THAT(Job().reason(), HasSubstr("needs 2 cpu workers and has 1: waits for 1 more"));
  EXPECT_EQ(Job().Wait()->phase, "workers");
  cluster_.Advance(absl::Seconds(30));
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(),
              AllOf(StartsWith("rank 1 ("), HasSubstr("was lost"),
                    HasSubstr("no workers came within 30s (recovery.wait_for_workers_s)")));
}

TEST_F(RecoveryTest, AWorkerThatComesBackEndsTheWait) {
  Train({.max_restarts = 3}, 2, 1);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(5));
  EXPECT_EQ(Job().epoch(), 1);
  cluster_.Join(3);
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Rank(1).worker, "n3/0");
}

TEST_F(RecoveryTest, AQueuedJobDoesNotTakeWhatARecoveryHolds) {
  Train({.max_restarts = 3}, 2, 1);
  const std::string next = cluster_.Submit({.world_size = 1});
  cluster_.SetObedient(false);
  cluster_.Report(job_, 0, FailedMessage{.reason = "out of memory"});
  Kill(1);  // its worker is free and waits for the other one
  EXPECT_EQ(Job().epoch(), 1);
  EXPECT_EQ(cluster_.Job(next).state(), JobState::kQueued);
  Kill(0);
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(cluster_.Job(next).state(), JobState::kQueued);
}

TEST_F(RecoveryTest, ACancelEndsARecovery) {
  Train({.max_restarts = 3}, 2, 1);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(5));
  cluster_.Handle(CancelJob{job_, "enough", CancelMode::kStop});
  EXPECT_EQ(Job().state(), JobState::kCancelled);
  EXPECT_THAT(Job().reason(), HasSubstr("on the way: rank 1"));
  cluster_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Job().released());
}

TEST_F(RecoveryTest, DirectivesThatWereNotAppliedAreSentAgain) {
  Train({.save = "/ckpt", .max_restarts = 3}, 2, 1);
  ASSERT_TRUE(cluster_.Handle(RequestDirective{job_, "asked"}).status.ok());
  Kill(1);
  ASSERT_EQ(cluster_.Sent<DirectiveBroadcast>(2).size(), 2u);
  EXPECT_EQ(cluster_.Sent<DirectiveBroadcast>(2)[1].epoch, 2);
  EXPECT_EQ(cluster_.Sent<DirectiveBroadcast>(2)[1].directive.number, 1);
  EXPECT_EQ(LastLaunch(2).directives_through, 0);
}

TEST_F(RecoveryTest, ElasticGoesOnWithFewerReplicasAndGrowsAgain) {
  Train({.world_size = 4, .max_restarts = 3, .elastic = true}, 4, 1);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(3));
  ASSERT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Job().world_size(), 2);
  EXPECT_EQ(Job().num_spares(), 1);
  EXPECT_EQ(Job().data_parallel_size(), 2);
  const LaunchMessage launch = LastLaunch(1);
  EXPECT_EQ(launch.world_size, 2);
  const ParsedSpec spec = ParseJobSpec(launch.spec_json);
  ASSERT_THAT(spec.problems, IsEmpty());
  EXPECT_EQ(spec.spec.resources.world_size, 2);
  EXPECT_EQ(spec.spec.training.global_batch_size, 4);
  ComeThrough(3);
  cluster_.Step(job_, 4);
  EXPECT_EQ(Job().totals().count_by_kind.at("shrink"), 1);
  cluster_.Join(5);
  cluster_.Advance(absl::Seconds(11));  // not more often than every 10 s
  ASSERT_TRUE(Job().change().has_value());
  EXPECT_EQ(Job().num_spares(), 2);
  for (const ExtraSlot& extra : std::vector<ExtraSlot>(Job().extras())) {
    cluster_.ReportFrom(extra.slot.worker, PhaseMessage{.phase = "spare"});
  }
  cluster_.Advance(absl::Milliseconds(200));
  ASSERT_EQ(Job().directives().last(), 1);
  EXPECT_EQ(Job().directives().After(0)[0].kind, Directive::Kind::kReform);
  cluster_.Phase(job_, "yielded");
  ASSERT_EQ(Job().epoch(), 3);
  EXPECT_EQ(Job().world_size(), 4);
  EXPECT_EQ(LastLaunch(1).spec_json, Job().identity().spec_json);
  EXPECT_EQ(LastLaunch(1).directives_through, 1);
  ComeThrough(4);
  cluster_.Step(job_, 5);
  EXPECT_EQ(Job().restarts(), 1);
  EXPECT_EQ(Events("reformed").size(), 1u);
}

TEST_F(RecoveryTest, AStepThatKillsAgainAndAgainIsLeftOutIfTheSpecSaysSo) {
  Train({.max_restarts = 3, .skip_poisoned_batch = true}, 2, 1);
  cluster_.Report(job_, 1, ExitedReport{.signal = 11});
  ComeThrough(3);
  cluster_.Report(job_, 1, ExitedReport{.signal = 11});
  EXPECT_THAT(Job().skipped_steps(), ElementsAre(4));
  EXPECT_EQ(Events("poisoned_batch").size(), 1u);
  EXPECT_THAT(ParseJobSpec(LastLaunch(1).spec_json).spec.training.iterations_to_skip,
              ElementsAre(4));
}

// ---- the ledger

class ReplayTest : public RecoveryTest {
 protected:
  void Report(int64_t iteration, double loss, int64_t consumed) {
    StepMessage step;
    step.iteration = iteration;
    step.lm_loss = loss;
    step.grad_norm = 0.5;
    step.consumed_samples = consumed;
    cluster_.Report(job_, Job().world_size() - 1, step);
  }
  void FailAfterThree() {
    Train({.max_restarts = 3}, 2, 1, 0);
    for (int i = 1; i <= 3; ++i) Report(i, 3.0 / i, 2 * i);
    Kill(0);
    ComeThrough(1, "snapshot");
  }
};

TEST_F(ReplayTest, TheSameStepAgainChangesNothingAndIsCounted) {
  FailAfterThree();
  Report(2, 1.5, 4);
  EXPECT_EQ(Job().iteration(), 3);
  EXPECT_EQ(Job().consumed_samples(), 6);
  EXPECT_THAT(Events("recovered")[0], HasSubstr("steps_redone=2"));
  Report(3, 1.0, 6);
  Report(4, 0.75, 8);
  EXPECT_EQ(Job().iteration(), 4);
  EXPECT_EQ(Job().totals().steps_redone, 2);
  EXPECT_EQ(Job().history().steps().size(), 4u);
  EXPECT_EQ(Job().history().FindStep(2)->epoch, 1);
}

TEST_F(ReplayTest, OtherNumbersAreAWrongResume) {
  FailAfterThree();
  Report(2, 1.5 + 1e-12, 4);
  EXPECT_EQ(Job().state(), JobState::kFailed);
  EXPECT_THAT(Job().reason(),
              AllOf(StartsWith("rank 0 ("),
                    HasSubstr("wrong resume: step 2 was run again with lm_loss 1.50000000000"),
                    HasSubstr("the ledger has lm_loss 1.5, grad_norm 0.5, consumed_samples 4")));
}

TEST_F(ReplayTest, OtherSamplesAreAWrongResume) {
  FailAfterThree();
  Report(2, 1.5, 5);
  EXPECT_EQ(Job().state(), JobState::kFailed);
}

TEST_F(ReplayTest, AfterAnotherNumberOfReplicasRoundingMayDiffer) {
  Train({.world_size = 2, .max_restarts = 3, .elastic = true}, 2, 1, 0);
  for (int i = 1; i <= 3; ++i) Report(i, 3.0 / i, 2 * i);
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(3));
  ASSERT_EQ(Job().world_size(), 1);
  ComeThrough(1, "snapshot");
  Report(2, 1.5 * (1 + 5e-6), 4);
  EXPECT_EQ(Job().state(), JobState::kRunning);
  Report(3, 1.0 + 2e-5, 6);
  EXPECT_EQ(Job().state(), JobState::kFailed);
}

TEST_F(ReplayTest, StepsWhoseReportsWereLostAreTold) {
  Train({.max_restarts = 3}, 2, 1, 0);
  Kill(0);
  ComeThrough(4);
  Report(4, 0.75, 8);
  Report(5, 0.6, 10);
  EXPECT_THAT(Events("ledger_gap"),
              ElementsAre("steps 1-3 were committed, and their reports were lost with their "
                          "worker"));
  Kill(0);
  ComeThrough(8);
  Report(8, 0.4, 16);
  EXPECT_THAT(Events("ledger_gap"), ElementsAre(HasSubstr("1-3"), HasSubstr("steps 6-7 were")));
}

// ---- moves

TEST_F(RecoveryTest, DrainMovesARankToASpareBetweenTwoSteps) {
  Train({.max_restarts = 3}, 3, 1);
  const std::string from = Rank(1).worker;
  ASSERT_TRUE(cluster_.Handle(DrainWorker{.worker = from}).status.ok());
  cluster_.Advance(absl::Milliseconds(200));
  ASSERT_TRUE(Job().change().has_value());
  ASSERT_EQ(Job().num_spares(), 1);
  const std::string to = Job().extras()[0].slot.worker;
  EXPECT_EQ(Job().directives().last(), 0);  // it is not warm yet
  cluster_.Step(job_, 4);
  cluster_.ReportFrom(to, PhaseMessage{.phase = "spare"});
  cluster_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(Job().directives().last(), 1);
  cluster_.Report(job_, 0, PhaseMessage{.phase = "yielded"});
  EXPECT_EQ(Job().epoch(), 1);
  cluster_.Report(job_, 1, PhaseMessage{.phase = "yielded"});
  ASSERT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Rank(1).worker, to);
  EXPECT_EQ(LastLaunch(2).num_helpers, 1);
  EXPECT_EQ(LastLaunch(2).assignments[0].rank, 2);
  EXPECT_EQ(LastLaunch(2).directives_through, 1);
  EXPECT_EQ(Job().restarts(), 0);
  ComeThrough(4);
  cluster_.ReportFrom(from, DoneMessage{.reason = "its state is given"});
  EXPECT_EQ(Job().num_helpers(), 0);  // it was stopped and has ended
  EXPECT_FALSE(cluster_.core().membership().FindWorker(from)->assignment.has_value());
  cluster_.Step(job_, 5);
  EXPECT_EQ(Job().state(), JobState::kRunning);
}

TEST_F(RecoveryTest, WithoutAnotherWorkerADrainedRankStays) {
  Train({.max_restarts = 3}, 2, 1);
  ASSERT_TRUE(cluster_.Handle(DrainWorker{.worker = Rank(1).worker}).status.ok());
  cluster_.Advance(absl::Seconds(1));
  EXPECT_FALSE(Job().change().has_value());
  EXPECT_EQ(Job().epoch(), 1);
  const std::string waits =
      absl::StrCat("drain waits: no spare and no idle worker for rank 1 (worker ", Rank(1).worker,
                   "); add a worker, or `muster uncordon ", Rank(1).worker, "` lets it stay");
  EXPECT_THAT(Events("drain_waits"), ElementsAre(waits));
  const Worker& worker = *cluster_.core().membership().FindWorker(Rank(1).worker);
  EXPECT_EQ(DrainText(Job(), worker), absl::StrCat(job_, ": ", waits));
  cluster_.Join(3);  // and it is carried out
  cluster_.Advance(absl::Milliseconds(100));
  ASSERT_TRUE(Job().change().has_value());
  EXPECT_EQ(DrainText(Job(), worker), absl::StrCat("rank 1 of ", job_, " moves to n3/0"));
  EXPECT_EQ(Job().drain_waits(), "");
}

TEST_F(RecoveryTest, WhoeverDrainsHearsAtOnceThatItWaits) {
  Train({.world_size = 3, .max_restarts = 3}, 3, 1);
  cluster_.Handle(DrainWorker{.worker = "n1"});
  EXPECT_THAT(Job().drain_waits(), HasSubstr("idle worker for rank 0 (worker n1/0)"));
  cluster_.Handle(DrainWorker{.worker = "n2"});
  EXPECT_THAT(Job().drain_waits(), HasSubstr("for ranks 0-1 (workers "));
  cluster_.Join(4);
  cluster_.Advance(absl::Milliseconds(100));  // one can move: the other one waits
  EXPECT_EQ(Job().change()->moves.size(), 1u);
  EXPECT_THAT(Job().drain_waits(), HasSubstr("for rank 1 ("));
  cluster_.Handle(CordonWorker{.worker = "n2", .undo = true});
  Kill(2);
  ComeThrough(3);
  cluster_.Step(job_, 4);
  cluster_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(Job().drain_waits(), "");
  EXPECT_EQ(Events("drain_waits").size(), 3u);
}

TEST_F(RecoveryTest, ADrainedSpareIsGivenBack) {
  Train({.spares = 1, .max_restarts = 3}, 3, 1);
  const std::string spare = Job().extras()[0].slot.worker;
  cluster_.ReportFrom(spare, PhaseMessage{.phase = "spare"});
  cluster_.Handle(DrainWorker{.worker = spare});
  EXPECT_EQ(Job().num_spares(), 0);
  EXPECT_FALSE(cluster_.core().membership().FindWorker(spare)->assignment.has_value());
  cluster_.Join(4);
  cluster_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(Job().num_spares(), 1);
  EXPECT_EQ(Job().state(), JobState::kRunning);
}

TEST_F(RecoveryTest, RanksThatDoNotYieldAreAbortedAndMoved) {
  Train({.max_restarts = 3}, 3, 1);
  ASSERT_TRUE(cluster_.Handle(DrainWorker{.worker = Rank(1).worker}).status.ok());
  cluster_.Advance(absl::Seconds(25));  // never warm, too
  EXPECT_EQ(Job().directives().last(), 1);
  cluster_.Report(job_, 0, PhaseMessage{.phase = "yielded"});
  for (int i = 0; i < 40 && Job().epoch() == 1; ++i) cluster_.Advance(absl::Seconds(60));
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(Events("not_yielded").size(), 1u);
}

TEST_F(RecoveryTest, AFailureOnTheWayToAMoveIsRecovered) {
  Train({.max_restarts = 3}, 3, 1);
  ASSERT_TRUE(cluster_.Handle(DrainWorker{.worker = Rank(1).worker}).status.ok());
  cluster_.Advance(absl::Milliseconds(200));
  Kill(0);
  EXPECT_EQ(Job().state(), JobState::kRecovering);
  EXPECT_FALSE(Job().change().has_value());
  ComeThrough(3);
  cluster_.Step(job_, 4);
  cluster_.Advance(absl::Milliseconds(200));
  EXPECT_TRUE(Job().change().has_value());  // it is still drained
}

TEST_F(RecoveryTest, ForgetIsSaidToAllThatHadRanksOfIt) {
  Train({.max_restarts = 3}, 3, 1);
  cluster_.Die(1);
  cluster_.Advance(absl::Seconds(3));
  ComeThrough(3);
  cluster_.Step(job_, 4);
  cluster_.Done(job_);
  cluster_.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster_.Sent<ForgetJobMessage>(2).size(), 1u);
  EXPECT_EQ(cluster_.Sent<ForgetJobMessage>(3).size(), 1u);
}

TEST_F(RecoveryTest, BuddiesAreOnOtherNodes) {
  Train({.world_size = 4, .max_restarts = 3}, 2, 2);
  for (const int node : {1, 2}) {
    for (const auto& assignment : LastLaunch(node).assignments) {
      ASSERT_GE(assignment.buddy, 0);
      EXPECT_NE(Rank(assignment.buddy).node, Rank(assignment.rank).node);
    }
  }
}

}  // namespace
}  // namespace muster
