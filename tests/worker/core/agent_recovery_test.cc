// What the agent's machine does when a job recovers: survivors, successors, spares, probes.
#include "tests/worker/core/agent_fixture.h"

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class AgentRecoveryTest : public AgentMachineTest {
 protected:
  Trace Killed(const std::string& worker, int64_t run = 1) {
    return From(worker, run, TrainerExited{.exit_code = -1, .signal = 9});
  }
  Trace Dies(const std::string& worker, int64_t run = 1) {
    return Handle(RunEvent{worker, run, RunEvent::Dying{{.exit_code = -1, .signal = 9}}});
  }
  // The snapshot memories named in assignments that the event led to.
  std::vector<int64_t> Memories(const AgentEvent& event) {
    std::vector<int64_t> ids;
    for (const AgentAction& action : machine_.Handle(event, now_)) {
      const auto* send = std::get_if<SendToTrainerAction>(&action);
      if (send != nullptr && std::holds_alternative<AssignMessage>(send->message)) {
        ids.push_back(send->snapshot_memory);
      }
    }
    return ids;
  }
};

TEST_F(AgentRecoveryTest, ACrashIsReportedInTheSameEventAndTheDeviceChecked) {
  Train();
  EXPECT_THAT(Killed("w0"), ElementsAre("check device of w0", "batch 1: w0 signal 9"));
  EXPECT_THAT(Handle(DeviceCheckedEvent{{"w0", "job", 1}, 0, {.device = "cpu"}}), IsEmpty());
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 2: w0 check cpu"));
}

TEST_F(AgentRecoveryTest, ADeathIsReportedAtOnceAndItsSuccessorWaitsUntilItIsGone) {
  Train();
  EXPECT_THAT(Dies("w0"), ElementsAre("batch 1: w0 signal 9"));
  EXPECT_THAT(Says("w0", ProgressMessage{.epoch = 1, .iteration = 9}), IsEmpty());
  EXPECT_THAT(Launch({"w0"}, 2), IsEmpty());
  Order(UniqueIdOrder{"job", 2, "ab"});
  EXPECT_THAT(Killed("w0"), ElementsAre("check device of w0", "start w0/2"));
  EXPECT_THAT(Says("w0", HelloMessage{}, 2),
              ElementsAre("to w0/2: assign rank 0 epoch 2 threads 4", "to w0/2: id ab"));
}

TEST_F(AgentRecoveryTest, ADyingSurvivorsNewAssignmentIsForANewProcess) {
  Train();
  Launch({"w0"}, 2);
  EXPECT_THAT(Dies("w0"), ElementsAre("batch 1: w0 signal 9"));
  EXPECT_THAT(Killed("w0"), ElementsAre("check device of w0", "start w0/2"));
}

TEST_F(AgentRecoveryTest, ADyingTrainerIsNotAskedStoppedOrReportedAgain) {
  Train();
  Dies("w0");
  EXPECT_THAT(Order(ProbeJobOrder{"job", 1, 5}), Not(Contains(HasSubstr("w0"))));
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "cancelled"}), IsEmpty());
  EXPECT_THAT(Order(WelcomeOrder{.reports_through = 1, .running = {{"w1", "job", 1}}}), IsEmpty());
  EXPECT_THAT(Killed("w0"), ElementsAre("check device of w0"));
}

TEST_F(AgentRecoveryTest, ASpareMayFollowADyingHelper) {
  Train();
  Launch({"w0"}, 2);
  Says("w0", PhaseMessage{.epoch = 2, .phase = "restoring"});
  Dies("w0");
  LaunchOrder spare{.job_id = "job", .epoch = 2, .world_size = 1};
  spare.assignments = {{.worker = "w0", .rank = -1}};
  EXPECT_THAT(Order(spare), IsEmpty());
  EXPECT_THAT(Killed("w0"), ElementsAre("check device of w0", "start w0/2"));
}

TEST_F(AgentRecoveryTest, AnEndThatWasOrderedIsNoCrash) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "cancelled"});
  EXPECT_THAT(Killed("w0"), ElementsAre("batch 1: w0 signal 9"));
  EXPECT_THAT(Exits("w1", 0), ElementsAre("batch 2: w1 exited 0"));
}

TEST_F(AgentRecoveryTest, OneLaunchServesTheSurvivorAndTheSuccessor) {
  Train();
  Killed("w0");
  Order(AbortOrder{"job", 1, "rank 0 died"});
  EXPECT_THAT(Launch({"w0", "w1"}, 2),
              ElementsAre("start w0/2", "to w1/1: assign rank 1 epoch 2 threads 4"));
  EXPECT_THAT(Says("w0", HelloMessage{}, 2),
              ElementsAre("to w0/2: assign rank 0 epoch 2 threads 4"));
}

TEST_F(AgentRecoveryTest, ASurvivorThatDiesBeforeItTookItsAssignmentUpIsReplacedHere) {
  Train();
  Order(AbortOrder{"job", 1, "rank 1 died"});
  Launch({"w0"}, 2);
  Order(UniqueIdOrder{"job", 2, "ab"});
  Says("w0", PhaseMessage{.epoch = 1, .phase = "waiting"});  // of the old epoch: proves nothing
  EXPECT_THAT(Killed("w0"),
              ElementsAre("check device of w0", "start w0/2", "batch 1: w0 signal 9"));
  EXPECT_THAT(Says("w0", HelloMessage{}, 2),
              ElementsAre("to w0/2: assign rank 0 epoch 2 threads 4", "to w0/2: id ab"))
      << "what was told to the dead one is told again";
  EXPECT_THAT(Killed("w0", 2), ElementsAre("check device of w0", "batch 2: w0 signal 9"))
      << "only once: this one's death is the coordinator's to know";
}

TEST_F(AgentRecoveryTest, TheDeathOfThatSurvivorIsReportedForItsOldEpoch) {
  Train();
  Launch({"w0"}, 2);
  for (const AgentAction& action :
       machine_.Handle(RunEvent{"w0", 1, TrainerExited{.signal = 9}}, now_)) {
    if (const auto* batch = std::get_if<SendBatchAction>(&action)) {
      EXPECT_EQ(batch->batch->reports[0].assignment.epoch, 1);
    }
  }
}

TEST_F(AgentRecoveryTest, ASurvivorThatSpokeOfItsNewEpochDiesInThat) {
  Train();
  Launch({"w0"}, 2);
  Says("w0", PhaseMessage{.epoch = 2, .phase = "forming"});
  EXPECT_THAT(Killed("w0"),
              ElementsAre("check device of w0", "batch 1: w0 phase forming; w0 signal 9"));
  EXPECT_EQ(machine_.state("w0"), State::kIdle);
}

TEST_F(AgentRecoveryTest, ALaunchWaitsForTheEndOfATrainerThatIsStopping) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "hangs"});
  EXPECT_THAT(Launch({"w0"}, 2), IsEmpty());
  EXPECT_THAT(Order(UniqueIdOrder{"job", 2, "ab"}), IsEmpty());
  EXPECT_THAT(Killed("w0"), ElementsAre("start w0/2", "batch 1: w0 signal 9"));
  EXPECT_THAT(Says("w0", HelloMessage{}, 2),
              ElementsAre("to w0/2: assign rank 0 epoch 2 threads 4", "to w0/2: id ab"));
}

TEST_F(AgentRecoveryTest, WhatWaitsIsReplacedByANewerEpochAndEndsByAStop) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "hangs"});
  EXPECT_THAT(Launch({"w0"}, 2), IsEmpty());
  EXPECT_THAT(Launch({"w0"}, 3), IsEmpty());
  EXPECT_THAT(Launch({"w0"}, 9, "other"),
              ElementsAre("batch 1: w0 not launched: worker w0 still has the trainer of job job, "
                          "epoch 3"));
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 3}, absl::Seconds(3), "cancelled"}),
              ElementsAre("batch 2: w0 not launched: it was stopped before its start: cancelled"));
  EXPECT_THAT(Exits("w0", 0), ElementsAre("batch 3: w0 exited 0"));
  EXPECT_EQ(machine_.state("w0"), State::kIdle);
}

TEST_F(AgentRecoveryTest, ANewIncarnationsLaunchWaitsForTheOldOnesTrainer) {
  Train();
  Handle(IncarnationOverEvent{});
  Welcome();
  EXPECT_THAT(Launch({"w0"}, 1, "other"), IsEmpty());
  EXPECT_THAT(Killed("w0"), ElementsAre("start w0/2")) << "the old one's end is not reported";
}

TEST_F(AgentRecoveryTest, ATerminatedAgentStartsNothingThatWaits) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "hangs"});
  Launch({"w0"}, 2);
  EXPECT_THAT(
      Handle(TerminateEvent{}),
      ElementsAre("sigterm w1/1", "batch 1: w0 not launched: the worker's agent is ending"));
  EXPECT_THAT(Exits("w0", 0), ElementsAre("batch 2: w0 exited 0"));
}

TEST_F(AgentRecoveryTest, ANewerEpochReplacesOneThatIsStillBeingLaunched) {
  Welcome();
  Launch({"w0"});
  Order(UniqueIdOrder{"job", 1, "old"});
  EXPECT_THAT(Launch({"w1", "w0"}, 2), ElementsAre("start w1/1"));
  EXPECT_THAT(Says("w0", HelloMessage{}), ElementsAre("to w0/1: assign rank 1 epoch 2 threads 4"));
}

TEST_F(AgentRecoveryTest, AWarmSpareIsToldItsRankLater) {
  Welcome();
  LaunchOrder spare{.job_id = "job", .epoch = 1, .world_size = 2};
  spare.assignments = {{.worker = "w0", .rank = -1}};
  EXPECT_THAT(Order(spare), ElementsAre("start w0/1"));
  EXPECT_THAT(Says("w0", HelloMessage{}), ElementsAre("to w0/1: assign rank -1 epoch 1 threads 4"));
  LaunchOrder launch{.job_id = "job", .epoch = 2, .world_size = 2, .num_helpers = 1};
  launch.assignments = {{.worker = "w0", .rank = 1, .buddy = 0}};
  EXPECT_THAT(Order(launch),
              ElementsAre("to w0/1: assign rank 1 epoch 2 threads 4 helpers 1 buddy 0"));
}

// ---- reconnection during a recovery

TEST_F(AgentRecoveryTest, AWelcomeWithANewerEpochLeavesTheSurvivorToItsLaunch) {
  Train();
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(0, {{"w0", "job", 2}, {"w1", "job", 2}}), IsEmpty());
  EXPECT_THAT(Launch({"w0", "w1"}, 2), ElementsAre("to w0/1: assign rank 0 epoch 2 threads 4",
                                                   "to w1/1: assign rank 1 epoch 2 threads 4"));
}

TEST_F(AgentRecoveryTest, AWelcomeWithAnOlderEpochAnotherJobOrWorkerDoesNot) {
  const AssignmentKey keys[] = {{"w0", "job", 1}, {"w0", "other", 3}, {"w1", "job", 3}};
  for (const AssignmentKey& key : keys) {
    SCOPED_TRACE(absl::StrCat(key.worker, " ", key.job_id, " ", key.epoch));
    AgentMachine machine(Options());
    machine.Handle(CoordinatorOrder(WelcomeOrder{}), now_);
    LaunchOrder launch{.job_id = "job", .epoch = 2};
    launch.assignments = {{.worker = "w0"}};
    machine.Handle(CoordinatorOrder(launch), now_);
    machine.Handle(StreamLostEvent{}, now_);
    machine.Handle(CoordinatorOrder(WelcomeOrder{.running = {key}}), now_);
    EXPECT_EQ(machine.state("w0"), State::kStopping);
  }
}

TEST_F(AgentRecoveryTest, AWelcomeWithAnEpochThatWasRefusedHereStopsTheTrainer) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "hangs"});
  Launch({"w0"}, 2);
  Order(StopOrder{{"w0", "job", 2}, absl::Seconds(3), "cancelled"});
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(0, {{"w0", "job", 2}, {"w1", "job", 1}}), Contains("end w0/1 in 0"));
}

TEST_F(AgentRecoveryTest, AStopOfTheEpochThatASurvivorWaitsForEndsIt) {
  Train();
  Handle(StreamLostEvent{});
  Welcome(0, {{"w0", "job", 2}, {"w1", "job", 2}});
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 2}, absl::Seconds(3), "cancelled"}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 3s"));
  const auto actions = machine_.Handle(RunEvent{"w0", 1, TrainerExited{}}, now_);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<SendBatchAction>(actions[0]).batch->reports[0].assignment.epoch, 2)
      << "the coordinator waits for this assignment's end";
}

TEST_F(AgentRecoveryTest, AWelcomeWithoutTheEpochThatWaitsDropsIt) {
  Train();
  Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "hangs"});
  Launch({"w0"}, 2);
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(0, {{"w1", "job", 1}}), Contains(HasSubstr("w0 not launched")));
  EXPECT_THAT(Exits("w0", 0), ElementsAre("batch 2: w0 exited 0"));
}

// ---- probes

TEST_F(AgentRecoveryTest, AProbeIsAnsweredByTheTrainerAndItsProcess) {
  Train();
  EXPECT_THAT(Order(ProbeJobOrder{"job", 1, 7}),
              ElementsAre("to w0/1: probe 7", "look at w0/1", "to w1/1: probe 7", "look at w1/1"));
  EXPECT_THAT(From("w0", 1, RunEvent::ProcessSeen{7, true, "S", 5.0}), IsEmpty())
      << "it may answer";
  EXPECT_THAT(Says("w0", ProbeReplyMessage{.epoch = 1, .request = 6}), IsEmpty()) << "an older one";
  EXPECT_THAT(Says("w0", ProbeReplyMessage{.epoch = 1, .request = 7, .iteration = 42}),
              ElementsAre("look at w0/1"));
  EXPECT_THAT(From("w0", 1, RunEvent::ProcessSeen{7, true, "R", 5.0}),
              ElementsAre("batch 1: w0 probed 7 R at 42"));
  EXPECT_THAT(From("w0", 1, RunEvent::ProcessSeen{7, true, "R", 5.0}), IsEmpty()) << "only once";
}

TEST_F(AgentRecoveryTest, ASilentTrainerIsLookedAtFromOutside) {
  Train();
  Order(ProbeJobOrder{"job", 1, 7});
  EXPECT_EQ(machine_.NextWake(), now_ + absl::Milliseconds(400));
  EXPECT_THAT(Tick(absl::Milliseconds(400)), ElementsAre("look at w0/1", "look at w1/1"));
  EXPECT_THAT(From("w1", 1, RunEvent::ProcessSeen{7, true, "T", 5.0}),
              ElementsAre("batch 1: w1 probed 7 T silent"));
  EXPECT_EQ(machine_.NextWake(), std::nullopt);
}

TEST_F(AgentRecoveryTest, NoAnswerIsWaitedForFromAStoppedProcess) {
  Train();
  Order(ProbeJobOrder{"job", 1, 7});
  EXPECT_THAT(From("w0", 1, RunEvent::ProcessSeen{7, true, "T", 5.0}),
              ElementsAre("batch 1: w0 probed 7 T silent"));
  EXPECT_THAT(Tick(absl::Milliseconds(400)), ElementsAre("look at w1/1")) << "the other may answer";
}

TEST_F(AgentRecoveryTest, ATrainerThatCannotBeAskedIsLookedAtAtOnce) {
  Welcome();
  Launch({"w0", "w1"});
  Says("w0", HelloMessage{.revision = 1});  // an older release
  EXPECT_THAT(Order(ProbeJobOrder{"job", 1, 7}), ElementsAre("look at w0/1", "look at w1/1"));
  EXPECT_THAT(From("w1", 1, RunEvent::ProcessSeen{7, false, "", 0}),
              ElementsAre("batch 1: w1 probed 7  gone silent"));
}

TEST_F(AgentRecoveryTest, AProbeOfAnotherEpochOrAnEndedTrainerIsNotAnswered) {
  Train();
  EXPECT_THAT(Order(ProbeJobOrder{"job", 2, 7}), IsEmpty());
  Order(ProbeJobOrder{"job", 1, 8});
  Killed("w0");
  EXPECT_THAT(From("w0", 1, RunEvent::ProcessSeen{8, true, "R", 5.0}), IsEmpty());
  EXPECT_THAT(Tick(absl::Milliseconds(400)), ElementsAre("look at w1/1"));
}

TEST_F(AgentRecoveryTest, WhatRanksStandStillForIsReportedAtOnce) {
  Train();
  EXPECT_THAT(Says("w0", RestoredMessage{.epoch = 1, .source = "live"}),
              ElementsAre("batch 1: w0 restored live"));
  EXPECT_THAT(Says("w0", ExamineMessage{.epoch = 1}), ElementsAre("batch 2: w0 examine"));
  EXPECT_THAT(Says("w0", PhaseMessage{.epoch = 1, .phase = "yielded"}),
              ElementsAre("batch 3: w0 phase yielded"));
  EXPECT_THAT(Says("w0", RankTimesMessage{.epoch = 1}), IsEmpty());
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 4: w0 times"));
}

// ---- snapshot memories

TEST_F(AgentRecoveryTest, ASuccessorIsGivenItsPredecessorsMemory) {
  Welcome();
  Launch({"w0", "w1"});
  EXPECT_THAT(Memories(RunEvent{"w0", 1, TrainerToAgent(HelloMessage{})}), ElementsAre(1));
  EXPECT_THAT(Memories(RunEvent{"w1", 1, TrainerToAgent(HelloMessage{})}), ElementsAre(2));
  Killed("w0");
  Launch({"w0"}, 2);
  EXPECT_THAT(Memories(RunEvent{"w0", 2, TrainerToAgent(HelloMessage{})}), ElementsAre(1));
  EXPECT_THAT(Order(ForgetJobOrder{"job"}), ElementsAre("free memory 1", "free memory 2"));
}

TEST_F(AgentRecoveryTest, ADyingTrainersMemoryGoesWithItsRankToAnotherWorker) {
  Welcome();
  Launch({"w0"});
  EXPECT_THAT(Memories(RunEvent{"w0", 1, TrainerToAgent(HelloMessage{})}), ElementsAre(1));
  Dies("w0");
  Launch({"w1"}, 2);
  EXPECT_THAT(Memories(RunEvent{"w1", 1, TrainerToAgent(HelloMessage{})}), ElementsAre(1));
  Killed("w0");
  EXPECT_THAT(Tick(absl::Minutes(10)), IsEmpty()) << "it is in use";
}

TEST_F(AgentRecoveryTest, ASpareHasNoMemoryUntilItHasARank) {
  Welcome();
  LaunchOrder spare{.job_id = "job", .epoch = 1, .world_size = 2};
  spare.assignments = {{.worker = "w0", .rank = -1}};
  Order(spare);
  EXPECT_THAT(Memories(RunEvent{"w0", 1, TrainerToAgent(HelloMessage{})}), ElementsAre(0));
}

TEST_F(AgentRecoveryTest, AMemoryThatNobodyComesForIsFreedAndThatWakesTheAgent) {
  Train();
  Killed("w0");
  EXPECT_EQ(machine_.NextWake(), now_ + absl::Minutes(10));
  EXPECT_THAT(Tick(absl::Minutes(10)), ElementsAre("free memory 1"));
}

}  // namespace
}  // namespace muster
