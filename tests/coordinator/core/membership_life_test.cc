// Agents that leave, fall silent, come back, and share devices; clocks that jump; disks that fill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;

TEST(MembershipLifeTest, AGoodbyeTakesTheWorkersAwayAtOnce) {
  CoreCluster cluster;
  cluster.Join(1);
  cluster.Join(2);
  cluster.Join(3);
  const std::string job = cluster.Submit();
  cluster.Phase(job, "training");
  cluster.SayGoodbye(1);
  EXPECT_EQ(cluster.core().membership().FindWorker("n1/0"), nullptr);
  EXPECT_EQ(cluster.Job(job).state(), JobState::kFailed);
  EXPECT_THAT(cluster.Job(job).reason(), HasSubstr("its agent left: drained for repair"));
  cluster.SayGoodbye(3);  // an idle one
  EXPECT_EQ(cluster.core().membership().agents().size(), 1u);
}

TEST(MembershipLifeTest, APartitionOfHalfAMinuteHurtsNobody) {
  CoreCluster cluster;
  cluster.Join(1);
  cluster.Join(2);
  const std::string job = cluster.Submit();
  cluster.Phase(job, "training");
  cluster.Step(job, 1);
  cluster.Cut(1);
  cluster.Cut(2);
  cluster.Advance(absl::Seconds(30));
  EXPECT_EQ(cluster.Job(job).state(), JobState::kRunning);
  for (const int node : {1, 2}) {
    const Agent& agent = *cluster.core().membership().FindStream(CoreCluster::StreamOf(node));
    EXPECT_EQ(agent.state, AgentState::kSuspect);
    EXPECT_THAT(agent.reason, HasSubstr("network"));
    cluster.Beat(node, {{job, 1, 40}});
  }
  cluster.Advance(absl::Milliseconds(500));
  EXPECT_EQ(cluster.Job(job).state(), JobState::kRunning);
  EXPECT_EQ(cluster.Job(job).restarts(), 0);
}

TEST(MembershipLifeTest, OneThatIsCutOffIsKeptWhileTheOthersAdvance) {
  CoreCluster cluster;
  cluster.Join(1);
  cluster.Join(2);
  const std::string job = cluster.Submit();
  cluster.Phase(job, "training");
  StepMessage step;
  step.iteration = 1;
  step.elapsed_ms = 1'000;  // from which the limit of a step is learned
  cluster.Report(job, 1, step);
  cluster.Cut(1);
  for (int64_t i = 2; i < 40; ++i) {
    cluster.Beat(2, {{job, 1, i}});
    cluster.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(cluster.Job(job).state(), JobState::kRunning);
  cluster.Advance(absl::Minutes(2));  // the steps stop too
  EXPECT_EQ(cluster.Job(job).state(), JobState::kFailed);
  EXPECT_THAT(cluster.Job(job).reason(), HasSubstr("its job has made no progress"));
}

TEST(MembershipLifeTest, AProcessThatDiesIsFoundOutSoon) {
  CoreCluster cluster;
  cluster.Join(1);
  cluster.Join(2);
  const std::string job = cluster.Submit();
  cluster.Phase(job, "training");
  cluster.Step(job, 1);
  cluster.Die(1);
  cluster.Advance(absl::Seconds(2));
  EXPECT_EQ(cluster.Job(job).state(), JobState::kFailed);
  EXPECT_THAT(cluster.Job(job).reason(), HasSubstr("did not come back"));
}

TEST(MembershipLifeTest, WhoWasGivenUpComesBackUnderANewName) {
  CoreCluster cluster;
  cluster.Join(1);
  const std::string job = cluster.Submit({.world_size = 1});
  cluster.Phase(job, "training");
  cluster.Die(1);
  cluster.Advance(absl::Seconds(3));
  ASSERT_EQ(cluster.Job(job).state(), JobState::kFailed);
  const std::string cause = cluster.Job(job).cause()->text;
  const absl::Status refused = cluster.Handle(OpenStream{"incarnation-1", 50}).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("register with a new one"));
  RegisterAgent again{.incarnation = "incarnation-1b",
                      .node = "n1",
                      .address = "10.0.0.1",
                      .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}}};
  EXPECT_TRUE(cluster.Handle(again).status.ok());
  EXPECT_TRUE(cluster.Handle(OpenStream{"incarnation-1b", 51}).status.ok());
  EXPECT_TRUE(cluster.IsIdle("n1/0"));
  EXPECT_EQ(cluster.Job(job).cause()->text, cause);
}

TEST(MembershipLifeTest, TheSecondClaimOfADeviceIsRefusedByName) {
  CoreCluster cluster;
  cluster.Join(1, 2, DeviceKind::kCuda);
  RegisterAgent other{.incarnation = "incarnation-x",
                      .node = "n1",
                      .address = "10.0.0.9",
                      .workers = {{"thief", "cuda:1", DeviceKind::kCuda, 1}}};
  const absl::Status status = cluster.Handle(other).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:1 of n1 is held by worker n1/1"));
  cluster.SayGoodbye(1);
  EXPECT_TRUE(cluster.Handle(other).status.ok());
}

TEST(MembershipLifeTest, ClockJumpsLoseNobody) {
  for (const absl::Duration jump : {absl::Hours(1), -absl::Hours(1), absl::Seconds(20)}) {
    SCOPED_TRACE(absl::FormatDuration(jump));
    Membership members({});
    std::vector<LostAgent> lost;
    absl::Time now = absl::FromUnixSeconds(1'700'000'000);
    const RegisterAgent agent{.incarnation = "incarnation-1",
                              .node = "n1",
                              .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}}};
    ASSERT_TRUE(members.Register(agent, now, &lost).ok());
    StreamId replaced = 0;
    ASSERT_TRUE(members.Open({"incarnation-1", 1}, now, &replaced).ok());
    EXPECT_TRUE(members.Tick(now).empty());
    now += jump;
    EXPECT_TRUE(members.Tick(now).empty());
    ASSERT_TRUE(members.Beat({.stream = 1}, now).ok());
    int ticks = 0;  // and death is still found out, in its time
    for (; members.Tick(now).empty() && ticks < 100; ++ticks) now += absl::Milliseconds(100);
    EXPECT_GE(ticks, 15);
    EXPECT_LE(ticks, 18);
  }
}

TEST(MembershipLifeTest, HeartbeatsStretchAndComeBackWithTheCluster) {
  Membership members({.workers_at_full_rate = 2});
  std::vector<LostAgent> lost;
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const auto agent = [](int i) {
    RegisterAgent request{.incarnation = absl::StrCat("incarnation-", i),
                          .node = absl::StrCat("n", i)};
    for (int slot = 0; slot < 2; ++slot) {
      request.workers.push_back({absl::StrCat("n", i, "/", slot), "cpu", DeviceKind::kCpu, slot});
    }
    return request;
  };
  StreamId replaced = 0;
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(members.Register(agent(i), now, &lost).ok());
    ASSERT_TRUE(members.Open({absl::StrCat("incarnation-", i), StreamId(i)}, now, &replaced).ok());
    EXPECT_EQ(members.heartbeat_interval(), absl::Milliseconds(500) * i);
  }
  ASSERT_TRUE(members.Leave({1, ""}).ok());
  ASSERT_TRUE(members.Leave({2, ""}).ok());
  EXPECT_EQ(members.heartbeat_interval(), absl::Milliseconds(500));
  // The third was told 1.5 s and beats so: 4.5 s are its limit until it registers again.
  const auto quiet_until_lost = [&] {
    EXPECT_TRUE(members.Beat({.stream = 3}, now).ok());
    const absl::Time start = now;
    while (members.Tick(now).empty()) now += absl::Milliseconds(100);
    return now - start;
  };
  EXPECT_EQ(quiet_until_lost(), absl::Milliseconds(4600));
  lost.clear();
  RegisterAgent fresh = agent(3);
  fresh.incarnation = "incarnation-3b";
  ASSERT_TRUE(members.Register(fresh, now, &lost).ok());
  ASSERT_TRUE(members.Open({"incarnation-3b", 3}, now, &replaced).ok());
  EXPECT_EQ(quiet_until_lost(), absl::Milliseconds(1600));
}

TEST(MembershipLifeTest, AgentsAreBounded) {
  Membership members({.max_agents = 1});
  std::vector<LostAgent> lost;
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  RegisterAgent agent{
      .incarnation = "incarnation-1", .node = "n1", .workers = {{"a", "cpu", DeviceKind::kCpu, 0}}};
  ASSERT_TRUE(members.Register(agent, now, &lost).ok());
  agent.incarnation = "incarnation-2";
  agent.workers[0].name = "b";
  const absl::Status status = members.Register(agent, now, &lost);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 agents; limit 1"));
  members.Tick(now + absl::Seconds(60));  // the first never opened its stream, and makes room
  EXPECT_TRUE(members.Register(agent, now, &lost).ok());
}

TEST(StorageStateTest, WhileTheDiskIsFullNothingBegins) {
  CoreCluster cluster;
  const std::string job = cluster.Submit({.world_size = 1});
  cluster.Handle(StorageState{false, "the journal's disk is full"});
  const absl::Status refused = cluster.Handle(SubmitJob{.spec_json = TestSpec()}).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the journal's disk is full"));
  cluster.Join(1);
  EXPECT_EQ(cluster.Job(job).state(), JobState::kQueued);
  EXPECT_THAT(cluster.Job(job).reason(), HasSubstr("the journal's disk is full"));
  cluster.Handle(StorageState{true, ""});
  EXPECT_EQ(cluster.Job(job).state(), JobState::kForming);
}

TEST(StorageStateTest, WhatRunsGoesOnWhileTheDiskIsFull) {
  CoreCluster cluster;
  cluster.Join(1);
  const std::string job = cluster.Submit({.world_size = 1});
  cluster.Handle(StorageState{false, "the journal's disk is full"});
  cluster.Phase(job, "training");
  cluster.Step(job, 10);
  cluster.Done(job);
  EXPECT_EQ(cluster.Job(job).state(), JobState::kCompleted);
}

}  // namespace
}  // namespace muster
