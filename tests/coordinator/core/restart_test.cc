// A coordinator that was restarted: whom it waits for, what it says again, what it never takes
// back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/restart_cluster.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(RestartTest, AgentsAreWaitedForAndWelcomedWithAllThatCounts) {
  Join(1, 2);
  const std::string job = Submit({.save = "/ckpt"});
  Report(1, job, 0, PublishUniqueIdMessage{1, "abcd"});
  Train(job, 7);
  ASSERT_TRUE(Handle(RequestDirective{.job_id = job}).status.ok());
  ASSERT_TRUE(Handle(SetKey{job, 1, "g/0", "v"}).status.ok());
  Restart();
  EXPECT_EQ(AgentOn(1).state, AgentState::kSuspect);
  EXPECT_EQ(Job(job).state(), JobState::kRunning);
  EXPECT_EQ(Job(job).iteration(), 7);
  Advance(absl::Seconds(30));
  ASSERT_TRUE(Connect(1).ok());
  const auto welcome = Sent<WelcomeMessage>(1);
  ASSERT_EQ(welcome.size(), 1u);
  EXPECT_EQ(welcome[0].reports_through, 2);
  EXPECT_EQ(welcome[0].running.size(), 2u);
  EXPECT_EQ(Sent<LaunchMessage>(1).at(0).epoch, 1);
  EXPECT_EQ(Sent<UniqueIdBroadcast>(1).at(0).id, "abcd");
  EXPECT_EQ(Sent<DirectiveBroadcast>(1).at(0).directive.number, 1);
  const Outcome wait = Handle(WaitPrefix{.token = 1,
                                         .job_id = job,
                                         .epoch = 1,
                                         .prefix = "g/",
                                         .count = 1,
                                         .limit = absl::Seconds(1)});
  ASSERT_EQ(wait.actions.size(), 1u);
  EXPECT_EQ(std::get<WaitDone>(wait.actions[0]).entries.at(0).second, "v");
  Train(job, 8);
  EXPECT_EQ(Job(job).history().steps().size(), 2u);
  EXPECT_EQ(Job(job).history().steps().newest().index, 2);
}

TEST_F(RestartTest, DirectivesThatWereAppliedAreNotSentAgain) {
  Join(1);
  Join(2);
  const std::string job = Submit({.save = "/ckpt"});
  Train(job, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Handle(RequestDirective{.job_id = job}).status.ok());
  Handle(CancelJob{.job_id = job, .mode = CancelMode::kStop});
  const auto sent_again = [&](int node) {
    sent_.clear();
    Handle(CloseStream{static_cast<StreamId>(node)});
    EXPECT_TRUE(Connect(node).ok());
    std::vector<int64_t> numbers;
    for (const auto& message : Sent<DirectiveBroadcast>(node)) {
      numbers.push_back(message.directive.number);
    }
    return numbers;
  };
  EXPECT_THAT(sent_again(1), ElementsAre(1, 2, 3, 4));
  Train(job, 5, /*applied_directive=*/2);
  EXPECT_THAT(sent_again(1), ElementsAre(3, 4));
  EXPECT_THAT(sent_again(2), ElementsAre(3, 4));
  Restart();
  EXPECT_THAT(sent_again(2), ElementsAre(3, 4));
  EXPECT_THAT(sent_again(1), ElementsAre(3, 4));
  // A stop goes out until a step has applied it: told again after each loss of a stream.
  Train(job, 6, /*applied_directive=*/3);
  Restart();
  EXPECT_THAT(sent_again(1), ElementsAre(4));
  EXPECT_THAT(sent_again(1), ElementsAre(4));
  EXPECT_EQ(Sent<DirectiveBroadcast>(1).at(0).directive.kind, Directive::Kind::kStop);
}

TEST_F(RestartTest, WhoDoesNotComeBackInTimeIsLost) {
  Join(1);
  Join(2);
  const std::string job = Submit();
  Restart({.membership = {.readoption_limit = absl::Seconds(20)}});
  ASSERT_TRUE(Connect(2).ok());
  Advance(absl::Seconds(19));
  EXPECT_EQ(AgentOn(1).state, AgentState::kSuspect);
  EXPECT_FALSE(Job(job).ended());
  Advance(absl::Seconds(45));  // it is forming: the others are heard, and it is not
  EXPECT_EQ(AgentOn(1).state, AgentState::kLost);
  EXPECT_EQ(Job(job).state(), JobState::kFailed);
  EXPECT_THAT(Job(job).reason(), HasSubstr("worker n1/0 was lost"));
}

TEST_F(RestartTest, ProgressOfItsJobKeepsAnAgentThatCannotReconnect) {
  Join(1);
  Join(2);
  const std::string job = Submit();
  Train(job, 1);
  Restart({.membership = {.readoption_limit = absl::Seconds(5)}});
  ASSERT_TRUE(Connect(1).ok());
  for (int64_t i = 2; i < 60; ++i) {
    Handle(Heartbeat{.stream = 1, .progress = {{job, 1, i}}});
    Advance(absl::Seconds(1));
  }
  EXPECT_EQ(AgentOn(2).state, AgentState::kSuspect);
  EXPECT_THAT(AgentOn(2).reason, HasSubstr("its job makes progress"));
  EXPECT_EQ(Job(job).state(), JobState::kRunning);
  EXPECT_EQ(Job(job).restarts(), 0);
}

TEST_F(RestartTest, ACrashBeforeTheActionsIsMadeUpForWhenAgentsReconnect) {
  Join(1, 2);
  // The decision is written, and nobody hears of it.
  const Outcome submitted = core_->Handle(SubmitJob{.spec_json = TestSpec()}, now_);
  const std::string job = std::get<SubmitReply>(submitted.reply).job_id;
  ASSERT_EQ(Job(job).state(), JobState::kForming);
  Write();
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  EXPECT_EQ(Sent<LaunchMessage>(1).at(0).assignments.size(), 2u);
  core_->Handle(CancelJob{.job_id = job, .mode = CancelMode::kKill}, now_);
  Write();
  Restart();
  EXPECT_EQ(Job(job).state(), JobState::kCancelled);
  ASSERT_TRUE(Connect(1).ok());
  EXPECT_EQ(Sent<AbortBroadcast>(1).size(), 1u);
  EXPECT_EQ(Sent<StopTrainerMessage>(1).size(), 2u);
  EXPECT_TRUE(Sent<LaunchMessage>(1).empty());
}

TEST_F(RestartTest, ACrashBeforeTheWriteTakesNothingBack) {
  Join(1, 2);
  core_->Handle(SubmitJob{.spec_json = TestSpec(), .idempotency_key = "k"}, now_);
  core_->TakeChanges();  // and the machine stops before it is written
  checker_ = {};
  Restart();
  EXPECT_TRUE(core_->jobs().empty());
  ASSERT_TRUE(Connect(1).ok());
  EXPECT_TRUE(Sent<WelcomeMessage>(1).at(0).running.empty());
  const auto again = Handle(SubmitJob{.spec_json = TestSpec(), .idempotency_key = "k"});
  EXPECT_EQ(Job(std::get<SubmitReply>(again.reply).job_id).state(), JobState::kForming);
}

TEST_F(RestartTest, AnIncarnationThatWasGivenUpStaysGivenUp) {
  Join(1);
  beating_.clear();
  Advance(absl::Seconds(2));
  ASSERT_EQ(AgentOn(1).state, AgentState::kLost);
  Restart();
  EXPECT_EQ(AgentOn(1).state, AgentState::kLost);
  EXPECT_THAT(AgentOn(1).reason, HasSubstr("no sign of life"));
  EXPECT_EQ(Connect(1).code(), absl::StatusCode::kAborted);
}

TEST_F(RestartTest, ReportsThatWereNeverWrittenLeaveAGapOnce) {
  Join(1, 2);
  const std::string job = Submit();
  Train(job, 1);
  const MapJournal before = journal_;
  Train(job, 2);
  journal_ = before;  // the power failed: the last second is gone, and was acknowledged
  checker_ = {};
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  EXPECT_EQ(Sent<WelcomeMessage>(1).at(0).reports_through, 1);
  Train(job, 3);
  EXPECT_EQ(core_->membership().num_lost_batches(), 1);
  EXPECT_EQ(Job(job).iteration(), 3);
  ++sequence_[1];
  EXPECT_EQ(Handle(ReportBatch{1, sequence_[1] + 1, {}}).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(RestartTest, ADeadlineThatPassedWhileItWasAwayWaitsForTheAgents) {
  Join(1, 2);
  const std::string job = Submit();
  Train(job, 1);
  ASSERT_TRUE(Handle(CancelJob{.job_id = job}).status.ok());
  ASSERT_FALSE(Job(job).ended());
  now_ += absl::Minutes(10);
  Restart();
  Advance(absl::Seconds(30));
  EXPECT_FALSE(Job(job).ended());
  ASSERT_TRUE(Connect(1).ok());
  Report(1, job, 0, DoneMessage{1, 0, "stop directive 1"});
  Report(1, job, 1, DoneMessage{1, 0, "stop directive 1"});
  EXPECT_EQ(Job(job).state(), JobState::kCancelled);
  EXPECT_THAT(Job(job).reason(), testing::Not(HasSubstr("in time")));
}

TEST_F(RestartTest, ADeadlineStillCountsWhenTheyAreBackAndTheClockWasSetBack) {
  Join(1, 2);
  const std::string job = Submit();
  Train(job, 1);
  ASSERT_TRUE(Handle(CancelJob{.job_id = job}).status.ok());
  now_ -= absl::Hours(24);
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  for (int64_t minute = 1; minute <= 16 && !Job(job).ended(); ++minute) {
    Advance(absl::Minutes(1));
    Handle(Heartbeat{.stream = 1, .progress = {{job, 1, 1 + minute}}});  // it trains on
  }
  EXPECT_EQ(Job(job).state(), JobState::kCancelled);
  EXPECT_THAT(Job(job).reason(), HasSubstr("in time"));
}

TEST_F(RestartTest, JobNumbersAndIdempotencyKeysGoOn) {
  CoordinatorOptions options;
  options.job_tag = "abc";
  core_ = std::make_unique<Coordinator>(options);
  Handle(SubmitJob{.spec_json = TestSpec(), .idempotency_key = "k"});
  options.job_tag = "other";
  Restart(options);
  EXPECT_EQ(core_->job_tag(), "abc");
  const auto repeated = Handle(SubmitJob{.spec_json = TestSpec(), .idempotency_key = "k"});
  EXPECT_EQ(std::get<SubmitReply>(repeated.reply).job_id, "job-abc-1");
  EXPECT_EQ(Submit(), "job-abc-2");
}

TEST_F(RestartTest, WhatNeedsTheDisk) {
  Join(1, 2);
  core_->TakeChanges();
  const auto durability_of = [&](const Event& event) {
    core_->Handle(event, now_);
    const DurableChanges changes = core_->TakeChanges();
    EXPECT_FALSE(changes.empty());
    return changes.durability;
  };
  EXPECT_EQ(durability_of(SubmitJob{.spec_json = TestSpec({.save = "/c"})}), Durability::kDecision);
  const AssignmentRef rank0{"n1/0", "job-1", 1, 0}, rank1{"n1/1", "job-1", 1, 1};
  EXPECT_EQ(durability_of(ReportBatch{1, 1, {{rank0, PhaseMessage{1, "loading", ""}}}}),
            Durability::kReport);
  EXPECT_EQ(durability_of(ReportBatch{1, 2, {{rank0, PublishUniqueIdMessage{1, "ab"}}}}),
            Durability::kDecision);
  EXPECT_EQ(durability_of(SetKey{"job-1", 1, "k", "v"}), Durability::kDecision);
  StepMessage step;
  step.iteration = 1;
  EXPECT_EQ(durability_of(ReportBatch{1, 3, {{rank0, step}}}), Durability::kReport);
  EXPECT_EQ(durability_of(ReportBatch{1, 4, {{rank0, LogLines{{"x"}}}}}), Durability::kReport);
  EXPECT_EQ(durability_of(RequestDirective{.job_id = "job-1"}), Durability::kDecision);
  EXPECT_EQ(durability_of(DrainWorker{"n1/0"}), Durability::kDecision);
  EXPECT_EQ(durability_of(ReportBatch{1, 5, {{rank0, DoneMessage{1, 0, "trained"}}}}),
            Durability::kDecision);
  EXPECT_EQ(durability_of(ReportBatch{1, 6, {{rank1, FailedMessage{1, "nan", false}}}}),
            Durability::kDecision);
  EXPECT_EQ(durability_of(LeaveAgent{1, "bye"}), Durability::kDecision);
}

TEST_F(RestartTest, HeartbeatsAndWaitsCostNothing) {
  Join(1, 2);
  const std::string job = Submit();
  Train(job, 1);
  core_->TakeChanges();
  core_->Handle(Heartbeat{.stream = 1, .progress = {{job, 1, 9}}}, now_);
  core_->Handle(OpenStream{"incarnation-1", 2}, now_);  // a stream that breaks is an event
  core_->Handle(WaitPrefix{.token = 1,
                           .job_id = job,
                           .epoch = 1,
                           .prefix = "g",
                           .count = 5,
                           .limit = absl::Seconds(9)},
                now_);
  core_->Tick(now_ + absl::Milliseconds(50));
  EXPECT_TRUE(core_->TakeChanges().empty());
}

TEST_F(RestartTest, AReportCostsItsOwnRecordsOnly) {
  Join(1, 64);
  const std::string job = Submit({.world_size = 64});
  core_->TakeChanges();
  const AssignmentRef rank9{Job(job).ranks()[9].worker, job, 1, 9};
  StepMessage step;
  step.iteration = 1;
  core_->Handle(ReportBatch{1, 1, {{rank9, step}}}, now_);
  core_->TakeChanges();
  step.iteration = 2;
  core_->Handle(ReportBatch{1, 2, {{rank9, step}, {rank9, PhaseMessage{1, "saving", ""}}}}, now_);
  const DurableChanges changes = core_->TakeChanges();
  std::vector<std::string> keys;
  for (const DurableRecord& record : changes.records) keys.push_back(record.key);
  EXPECT_THAT(keys, testing::ElementsAre("agent/696e6361726e6174696f6e2d31/reports", "job/1/state",
                                         "job/1/rank/9"));
  ASSERT_EQ(changes.ledger.size(), 1u);
  EXPECT_EQ(changes.ledger[0].index, 2);
}

}  // namespace
}  // namespace muster
