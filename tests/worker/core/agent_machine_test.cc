// AgentMachine by scripts of events; the clock is a number.
#include "worker/core/agent_machine.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/core/agent_fixture.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(AgentMachineTest, LaunchStartsATrainerThatGetsItsAssignmentAfterHello) {
  EXPECT_THAT(Welcome(), IsEmpty());
  EXPECT_THAT(Launch({"w0", "w1"}), ElementsAre("start w0/1", "start w1/1"));
  EXPECT_EQ(machine_.state("w0"), State::kLaunching);
  EXPECT_THAT(Order(UniqueIdOrder{"job", 1, "ab"}), IsEmpty());
  EXPECT_THAT(Says("w1", HelloMessage{}),
              ElementsAre("to w1/1: assign rank 1 epoch 1 threads 4", "to w1/1: id ab"));
  EXPECT_EQ(machine_.state("w1"), State::kTraining);
  EXPECT_THAT(Order(DirectiveOrder{"job", 1, {.number = 1}}), ElementsAre("to w1/1: directive 1"));
  EXPECT_THAT(Says("w0", HelloMessage{}), ElementsAre("to w0/1: assign rank 0 epoch 1 threads 4",
                                                      "to w0/1: id ab", "to w0/1: directive 1"));
}

TEST_F(AgentMachineTest, TrainerThatSpeaksAnotherControlVersionIsStopped) {
  Welcome();
  Launch({"w0"});
  EXPECT_THAT(Says("w0", HelloMessage{.version = kControlProtocolVersion + 1}),
              ElementsAre("end w0/1 in 0"));
  EXPECT_EQ(machine_.state("w0"), State::kStopping);
}

TEST_F(AgentMachineTest, ReportsTravelInBatchesOutcomesAtOnce) {
  Train();
  EXPECT_THAT(Says("w0", StepMessage{.epoch = 1, .iteration = 1}), IsEmpty());
  EXPECT_THAT(Says("w0", StepMessage{.epoch = 1, .iteration = 2}), IsEmpty());
  EXPECT_EQ(machine_.NextWake(), now_ + absl::Milliseconds(20));
  EXPECT_THAT(Tick(absl::Milliseconds(19)), IsEmpty());
  EXPECT_THAT(Tick(absl::Milliseconds(1)), ElementsAre("batch 1: w0 step 1; w0 step 2"));
  EXPECT_EQ(machine_.NextWake(), std::nullopt);
  Says("w1", PhaseMessage{.epoch = 1, .phase = "saving"});
  EXPECT_THAT(Says("w1", DoneMessage{.epoch = 1}),
              ElementsAre("batch 2: w1 phase saving; w1 done 0"));
}

TEST_F(AgentMachineTest, LogLinesOfOneTrainerShareAReport) {
  Train();
  for (const char* line : {"a", "b"}) From("w0", 1, RunEvent::LogLine{line});
  From("w1", 1, RunEvent::LogLine{"c"});
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 1: w0 log a,b; w1 log c"));
}

TEST_F(AgentMachineTest, ExitIsReportedOnceAndFreesTheWorker) {
  Train();
  EXPECT_THAT(Exits("w0", 3), ElementsAre("check device of w0", "batch 1: w0 exited 3"));
  EXPECT_EQ(machine_.state("w0"), State::kIdle);
  EXPECT_THAT(Exits("w0", 3), IsEmpty());
  EXPECT_THAT(Launch({"w0"}, 2, "next"), ElementsAre("start w0/2"));
  EXPECT_THAT(Exits("w0", 3, /*run=*/1), IsEmpty()) << "an event of the run before";
  EXPECT_THAT(Says("w0", StepMessage{.epoch = 2}, /*run=*/1), IsEmpty());
}

TEST_F(AgentMachineTest, FailedLaunchIsReportedAsExited) {
  Welcome();
  Launch({"w0"});
  EXPECT_THAT(From("w0", 1, TrainerExited{.launch_error = "no program"}),
              ElementsAre("batch 1: w0 not launched: no program"));
  EXPECT_EQ(machine_.state("w0"), State::kIdle);
}

TEST_F(AgentMachineTest, OrdersOfAnotherEpochOrJobChangeNothing) {
  Train();
  const CoordinatorOrder orders[] = {
      UniqueIdOrder{"job", 2, "ab"},
      UniqueIdOrder{"other", 1, "ab"},
      DirectiveOrder{"job", 0, {.number = 1}},
      AbortOrder{"job", 2, "late"},
      StopOrder{{"w0", "job", 0}, absl::Seconds(1), "late"},
      StopOrder{{"w9", "job", 1}, absl::Seconds(1), "unknown worker"},
  };
  for (const CoordinatorOrder& order : orders) {
    SCOPED_TRACE(order.index());
    EXPECT_THAT(Order(order), IsEmpty());
  }
  EXPECT_THAT(Launch({"w0", "w1"}, 1), IsEmpty()) << "the same assignment again";
  EXPECT_EQ(machine_.state("w0"), State::kTraining);
}

TEST_F(AgentMachineTest, TrainerMessagesOfAnotherEpochAreDropped) {
  Train();
  Says("w0", StepMessage{.epoch = 0, .iteration = 7});
  Says("w0", DoneMessage{.epoch = 2});
  Says("w0", StoreRequestMessage{.request = 1, .epoch = 2, .key = "k"});
  EXPECT_THAT(Tick(absl::Seconds(1)), IsEmpty());
}

TEST_F(AgentMachineTest, StoreRequestsGoOutAndRepliesComeBack) {
  Train();
  EXPECT_THAT(Says("w1", StoreRequestMessage{.request = 5, .epoch = 1, .key = "tp/0"}),
              ElementsAre("store job tp/0"));
  EXPECT_THAT(From("w1", 1, StoreReplyMessage{.request = 5, .ok = true}),
              ElementsAre("to w1/1: reply 5"));
  EXPECT_THAT(From("w1", 9, StoreReplyMessage{.request = 5}), IsEmpty()) << "another run's";
}

TEST_F(AgentMachineTest, PiecesOfATraceGoOutWithTheirRank) {
  Train();
  EXPECT_THAT(Says("w1", TracePieceMessage{.request = 3, .epoch = 1, .offset = 512}),
              ElementsAre("trace of job, rank 1, from 512"));
  EXPECT_THAT(Says("w1", TracePieceMessage{.request = 3, .epoch = 0}), IsEmpty())
      << "of an old epoch";
}

TEST_F(AgentMachineTest, AbortThenNewerEpochKeepsTheProcess) {
  Train();
  EXPECT_THAT(Order(AbortOrder{"job", 1, "rank 1 died"}),
              ElementsAre("to w0/1: abort 1", "to w1/1: abort 1"));
  EXPECT_THAT(Launch({"w1", "w0"}, 2), ElementsAre("to w1/1: assign rank 0 epoch 2 threads 4",
                                                   "to w0/1: assign rank 1 epoch 2 threads 4"));
  Says("w0", StepMessage{.epoch = 1, .iteration = 1});  // of the old epoch
  Says("w0", StepMessage{.epoch = 2, .iteration = 2});
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 1: w0 step 2"));
}

TEST_F(AgentMachineTest, StopAsksThenKills) {
  Train();
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "cancelled"}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 3s"));
  EXPECT_EQ(machine_.state("w0"), State::kStopping);
  EXPECT_EQ(machine_.state("w1"), State::kTraining);
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::ZeroDuration(), "now"}),
              ElementsAre("end w0/1 in 0"));
  EXPECT_THAT(From("w0", 1, TrainerExited{.exit_code = -1, .signal = 9}),
              ElementsAre("batch 1: w0 signal 9"));
  EXPECT_EQ(machine_.state("w0"), State::kIdle);
}

TEST_F(AgentMachineTest, StopOfWhatWasNeverLaunchedIsAnswered) {
  Welcome();
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "cancelled"}),
              ElementsAre("batch 1: w0 not launched: the order to launch it never came"));
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "cancelled"}), IsEmpty());
  EXPECT_THAT(Launch({"w0"}), IsEmpty()) << "behind its stop";
  EXPECT_THAT(Launch({"w0"}, 2), ElementsAre("start w0/1"));
}

// A helper that has given its state away may become a spare of the same epoch.
TEST_F(AgentMachineTest, AHelperIsAWarmSpareOfTheSameEpoch) {
  Welcome();
  Launch({"w0"});
  LaunchOrder spare{.job_id = "job", .epoch = 1, .world_size = 1};
  spare.assignments.push_back({.worker = "w0", .rank = -1});
  EXPECT_THAT(Order(spare), IsEmpty()) << "its trainer has not ended";
  Exits("w0", 0);
  EXPECT_THAT(Order(spare), ElementsAre("start w0/2"));
  EXPECT_THAT(Order(spare), IsEmpty()) << "a repetition";
  Says("w0", HelloMessage{}, /*run=*/2);
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "the job has ended"}),
              ElementsAre("to w0/2: shutdown", "end w0/2 in 3s"));
}

// Nothing tells a third Launch from a repetition, but the coordinator must not wait for that
// trainer's end for ever.
TEST_F(AgentMachineTest, StopOfASecondSpareOfAnEpochIsAnswered) {
  Welcome();
  LaunchOrder spare{.job_id = "job", .epoch = 1, .world_size = 1};
  spare.assignments.push_back({.worker = "w0", .rank = -1});
  EXPECT_THAT(Order(spare), ElementsAre("start w0/1"));
  Exits("w0", 0);
  EXPECT_THAT(Order(spare), IsEmpty());
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "the job has ended"}),
              ElementsAre(HasSubstr("w0 not launched: a second trainer of this epoch")));
  EXPECT_THAT(Order(StopOrder{{"w0", "job", 1}, absl::Seconds(3), "the job has ended"}), IsEmpty());
}

TEST_F(AgentMachineTest, RepeatedOrdersReachATrainerOnce) {
  Train();
  EXPECT_THAT(Order(UniqueIdOrder{"job", 1, "ab"}),
              ElementsAre("to w0/1: id ab", "to w1/1: id ab"));
  EXPECT_THAT(Order(UniqueIdOrder{"job", 1, "ab"}), IsEmpty());
  EXPECT_THAT(Order(AbortOrder{"job", 1, ""}), ElementsAre("to w0/1: abort 1", "to w1/1: abort 1"));
  EXPECT_THAT(Order(AbortOrder{"job", 1, ""}), IsEmpty());
  Launch({"w0"}, 2);
  EXPECT_THAT(Order(UniqueIdOrder{"job", 2, "cd"}), ElementsAre("to w0/1: id cd"));
}

TEST_F(AgentMachineTest, LaunchOnABusyOrUnknownWorkerIsRefused) {
  Train();
  EXPECT_THAT(Launch({"w0"}, 5, "other"),
              ElementsAre("batch 1: w0 not launched: worker w0 still has the trainer of job job, "
                          "epoch 1"));
  EXPECT_THAT(Launch({"w7"}, 5, "other"),
              ElementsAre("batch 2: w7 not launched: this agent has no worker w7"));
  EXPECT_EQ(machine_.state("w0"), State::kTraining);
}

TEST_F(AgentMachineTest, SilentTrainerIsKilledAtTheHelloLimit) {
  Welcome();
  Launch({"w0"});
  EXPECT_EQ(machine_.NextWake(), now_ + absl::Minutes(2));
  EXPECT_THAT(Tick(absl::Minutes(2)), ElementsAre("end w0/1 in 0"));
  EXPECT_EQ(machine_.NextWake(), std::nullopt);
}

TEST_F(AgentMachineTest, UnreadableMessageEndsTheTrainerAndTheReportSaysWhy) {
  Train();
  From("w0", 1, RunEvent::Garbage{"not JSON"});
  std::vector<AgentAction> actions = machine_.Handle(
      RunEvent{"w0", 1, TrainerExited{.signal = 9, .last_log_lines = {"last"}}}, now_);
  ASSERT_EQ(actions.size(), 1u);
  const auto& exited =
      std::get<TrainerExited>(std::get<SendBatchAction>(actions[0]).batch->reports.back().report);
  ASSERT_EQ(exited.last_log_lines.size(), 2u);
  EXPECT_THAT(exited.last_log_lines[1], HasSubstr("not JSON"));
}

TEST_F(AgentMachineTest, ReportsWaitWhileAwayAndAreSentAgainUntilAcknowledged) {
  Train();
  Says("w0", StepMessage{.epoch = 1, .iteration = 1});
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 1: w0 step 1"));
  Says("w0", StepMessage{.epoch = 1, .iteration = 2});
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("batch 2: w0 step 2"));
  Order(AckOrder{1});
  Handle(StreamLostEvent{});
  Says("w0", StepMessage{.epoch = 1, .iteration = 3});
  EXPECT_THAT(Tick(absl::Seconds(1)), IsEmpty());
  const std::vector<AssignmentKey> running = {{"w0", "job", 1}, {"w1", "job", 1}};
  // The coordinator had batch 2; only its acknowledgement was lost.
  EXPECT_THAT(Welcome(2, running), ElementsAre("batch 3: w0 step 3"));
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(2, running), ElementsAre("batch 3: w0 step 3"));
  Order(AckOrder{3});
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(3, running), IsEmpty());
  EXPECT_EQ(machine_.state("w0"), State::kTraining) << "training went on throughout";
}

TEST_F(AgentMachineTest, WelcomeSettlesWhatRuns) {
  Train();
  Handle(StreamLostEvent{});
  Exits("w1", 1);
  // w1's exit is known to the agent only; w0 was given up by the coordinator.
  EXPECT_THAT(Welcome(0, {{"w1", "job", 1}}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 0", "batch 1: w1 exited 1"));
  EXPECT_THAT(Launch({"w0", "w1"}), IsEmpty()) << "repeated, and ended since";
}

TEST_F(AgentMachineTest, LostRecordOfReportsStartsAfresh) {
  Train();
  Says("w0", StepMessage{.epoch = 1, .iteration = 1});
  Tick(absl::Seconds(1));
  Order(AckOrder{1});
  Handle(StreamLostEvent{});
  EXPECT_THAT(Welcome(7, {{"w0", "job", 1}}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 0", "to w1/1: shutdown",
                          "end w1/1 in 0", "new incarnation"));
  EXPECT_THAT(Exits("w0", 0), IsEmpty());
  EXPECT_THAT(Exits("w1", 0), IsEmpty());
  EXPECT_THAT(Welcome(0), IsEmpty()) << "nothing of the old incarnation is reported";
  EXPECT_THAT(Launch({"w0"}), ElementsAre("start w0/2"));
  EXPECT_THAT(Exits("w0", 0, 2), ElementsAre("batch 1: w0 exited 0"));
}

TEST_F(AgentMachineTest, IncarnationOverStopsAll) {
  Train();
  EXPECT_THAT(Handle(IncarnationOverEvent{}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 0", "to w1/1: shutdown",
                          "end w1/1 in 0", "new incarnation"));
}

TEST_F(AgentMachineTest, TerminationLetsTrainersCheckpointThenLeaves) {
  Train();
  EXPECT_THAT(Handle(TerminateEvent{}), ElementsAre("sigterm w0/1", "sigterm w1/1"));
  EXPECT_THAT(Launch({"w0"}, 9, "x"),
              ElementsAre("batch 1: w0 not launched: the worker's agent is ending"));
  EXPECT_THAT(Says("w0", DoneMessage{.epoch = 1}),
              ElementsAre("to w0/1: shutdown", "end w0/1 in 5s", "batch 2: w0 done 0"));
  EXPECT_THAT(Exits("w0", 0), ElementsAre("batch 3: w0 exited 0"));
  EXPECT_THAT(Tick(absl::Seconds(59)), IsEmpty());
  EXPECT_THAT(Tick(absl::Seconds(1)), ElementsAre("to w1/1: shutdown", "end w1/1 in 5s"));
  EXPECT_THAT(Exits("w1", 0), ElementsAre("batch 4: w1 exited 0"));
  EXPECT_THAT(Order(AckOrder{4}), ElementsAre("goodbye"));
}

TEST_F(AgentMachineTest, SecondTerminationIsAtOnce) {
  Train();
  Handle(TerminateEvent{});
  EXPECT_THAT(Handle(TerminateEvent{}), ElementsAre("to w0/1: shutdown", "end w0/1 in 0",
                                                    "to w1/1: shutdown", "end w1/1 in 0"));
}

TEST_F(AgentMachineTest, IdleAgentLeavesAtOnce) {
  Welcome();
  EXPECT_THAT(Handle(TerminateEvent{}), ElementsAre("goodbye"));
}

TEST_F(AgentMachineTest, AgentWithoutAcknowledgementsLeavesAfterALimit) {
  Train();
  Handle(TerminateEvent{});
  Exits("w0", 0);
  EXPECT_THAT(Exits("w1", 0), ElementsAre("batch 2: w1 exited 0"));
  EXPECT_EQ(machine_.NextWake(), now_ + absl::Seconds(2));
  EXPECT_THAT(Tick(absl::Seconds(2)), ElementsAre("leave"));
}

// SIGTERM in every state of a worker, with and without a coordinator: the agent always leaves,
// within limits that are known, and a second SIGTERM makes it a matter of seconds.
TEST_F(AgentMachineTest, TerminationEndsInEveryState) {
  enum class Dies { kAtOnce, kNever };
  struct Row {
    const char* name;
    State state;
    bool connected;
    Dies dies;  // what a trainer does when it is ended
    int terminations;
    absl::Duration at_most;
    const char* last;
  };
  const Row rows[] = {
      {"idle", State::kIdle, true, Dies::kAtOnce, 1, absl::ZeroDuration(), "goodbye"},
      {"idle, away", State::kIdle, false, Dies::kAtOnce, 1, absl::ZeroDuration(), "leave"},
      {"launching", State::kLaunching, true, Dies::kAtOnce, 1, absl::ZeroDuration(), "goodbye"},
      {"launching, away", State::kLaunching, false, Dies::kAtOnce, 1, absl::Seconds(2), "leave"},
      {"launching, hangs", State::kLaunching, true, Dies::kNever, 1, absl::Seconds(75), "leave"},
      {"launching, hangs, twice", State::kLaunching, true, Dies::kNever, 2, absl::Seconds(10),
       "leave"},
      {"training", State::kTraining, true, Dies::kAtOnce, 1, absl::Seconds(60), "goodbye"},
      {"training, away", State::kTraining, false, Dies::kAtOnce, 1, absl::Seconds(62), "leave"},
      {"training, twice", State::kTraining, true, Dies::kAtOnce, 2, absl::ZeroDuration(),
       "goodbye"},
      {"training, hangs", State::kTraining, true, Dies::kNever, 1, absl::Seconds(75), "leave"},
      {"stopping", State::kStopping, true, Dies::kAtOnce, 1, absl::Seconds(60), "goodbye"},
      {"stopping, twice", State::kStopping, true, Dies::kAtOnce, 2, absl::ZeroDuration(),
       "goodbye"},
      {"stopping, hangs", State::kStopping, false, Dies::kNever, 1, absl::Seconds(75), "leave"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    AgentMachine machine(Options());
    absl::Duration now = absl::Seconds(5);
    std::string last;  // "goodbye" or "leave", once it was said
    // A trainer that dies does so when it is killed, and the coordinator acknowledges at once.
    std::function<void(const AgentEvent&)> handle = [&](const AgentEvent& event) {
      for (const AgentAction& action : machine.Handle(event, now)) {
        if (const auto* end = std::get_if<EndTrainerAction>(&action)) {
          if (row.dies == Dies::kAtOnce && end->grace < absl::Minutes(1)) {
            handle(RunEvent{end->worker, end->run, TrainerExited{}});
          }
        } else if (const auto* batch = std::get_if<SendBatchAction>(&action)) {
          handle(CoordinatorOrder(AckOrder{batch->batch->sequence}));
        } else if (std::holds_alternative<ExitAgentAction>(action)) {
          EXPECT_EQ(last, "") << "only once";
          last = Name(action);
        }
      }
    };
    handle(CoordinatorOrder(WelcomeOrder{}));
    if (row.state != State::kIdle) {
      LaunchOrder launch{.job_id = "job", .epoch = 1};
      launch.assignments = {{.worker = "w0"}};
      handle(CoordinatorOrder(launch));
    }
    if (row.state == State::kTraining || row.state == State::kStopping) {
      handle(RunEvent{"w0", 1, TrainerToAgent(HelloMessage{})});
    }
    if (row.state == State::kStopping) {
      handle(CoordinatorOrder(StopOrder{{"w0", "job", 1}, absl::Minutes(15), "cancelled"}));
    }
    ASSERT_EQ(machine.state("w0"), row.state);
    if (!row.connected) handle(StreamLostEvent{});
    for (int i = 0; i < row.terminations; ++i) handle(TerminateEvent{});
    const absl::Duration start = now;
    while (last.empty() && machine.NextWake() && now - start <= row.at_most) {
      now = std::max(now, *machine.NextWake());
      handle(TickEvent{});
    }
    EXPECT_EQ(last, row.last);
    EXPECT_LE(now - start, row.at_most);
  }
}

TEST_F(AgentMachineTest, ProgressIsTheHighestOfANodesRanksAndEndsWithTheTrainer) {
  Train();
  EXPECT_THAT(machine_.Progress(), IsEmpty());
  EXPECT_THAT(Says("w0", ProgressMessage{.epoch = 1, .iteration = 4}), IsEmpty())
      << "it is no report";
  Says("w1", ProgressMessage{.epoch = 1, .iteration = 5});
  EXPECT_THAT(machine_.Progress(), ElementsAre(JobProgress{"job", 1, 5}));
  Says("w0", StepMessage{.epoch = 1, .iteration = 6});
  EXPECT_THAT(machine_.Progress(), ElementsAre(JobProgress{"job", 1, 6}));
  Says("w1", ProgressMessage{.epoch = 0, .iteration = 99});
  EXPECT_THAT(machine_.Progress(), ElementsAre(JobProgress{"job", 1, 6})) << "of an older epoch";
  Launch({"w0", "w1"}, 2);
  EXPECT_THAT(machine_.Progress(), IsEmpty()) << "an epoch starts anew";
  Says("w1", ProgressMessage{.epoch = 2, .iteration = 3});
  EXPECT_THAT(machine_.Progress(), ElementsAre(JobProgress{"job", 2, 3}));
  Exits("w1", 1);
  EXPECT_THAT(machine_.Progress(), IsEmpty());
}

}  // namespace
}  // namespace muster
