#include "coordinator/core/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::HasSubstr;

RegisterAgent Agent1(const std::string& incarnation = "incarnation-1") {
  return {.incarnation = incarnation,
          .node = "n1",
          .version = "0.1",
          .address = "10.0.0.1",
          .num_cpus = 4,
          .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}, {"n1/1", "cpu", DeviceKind::kCpu, 1}}};
}

class MembershipTest : public testing::Test {
 protected:
  absl::Status Register(const RegisterAgent& agent) {
    lost_.clear();
    return members_.Register(agent, now_, &lost_);
  }
  absl::Status Open(const std::string& incarnation, StreamId stream) {
    return members_.Open({incarnation, stream}, now_, &replaced_).status();
  }
  AgentState StateOf(const std::string& incarnation) {
    return members_.FindAgent(incarnation)->state;
  }
  // In steps of a heartbeat interval, so that the time is not taken for a pause of this process.
  std::vector<LostAgent> Advance(absl::Duration by) {
    std::vector<LostAgent> lost;
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ += absl::Milliseconds(100);
      for (LostAgent& agent : members_.Tick(now_)) lost.push_back(agent);
    }
    return lost;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  Membership members_{MembershipOptions{}};
  std::vector<LostAgent> lost_;
  StreamId replaced_ = 0;
};

TEST_F(MembershipTest, JoinsBeatsFallsSilentAndIsLost) {
  ASSERT_TRUE(Register(Agent1()).ok());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kJoining);
  EXPECT_FALSE(members_.IsIdle(*members_.FindWorker("n1/0")));
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kAlive);
  EXPECT_TRUE(members_.IsIdle(*members_.FindWorker("n1/0")));
  // Two heartbeats that are late are no reason to tell anybody.
  EXPECT_TRUE(Advance(absl::Milliseconds(1200)).empty());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kAlive);
  EXPECT_TRUE(members_.TakeNews().empty());
  EXPECT_TRUE(Advance(absl::Milliseconds(200)).empty());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kSuspect);
  auto news = members_.TakeNews();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_FALSE(news[0].alive);
  EXPECT_THAT(news[0].reason, HasSubstr("no heartbeat for 1.4s"));
  ASSERT_TRUE(members_.Beat({.stream = 1, .sequence = 1}, now_).ok());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kAlive);
  news = members_.TakeNews();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].alive);
  const auto lost = Advance(absl::Milliseconds(1700));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].stream, 1u);
  EXPECT_THAT(lost[0].reason, HasSubstr("no sign of life"));
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kLost);
}

TEST_F(MembershipTest, ALostIncarnationIsRefusedForGood) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  Advance(absl::Seconds(2));
  EXPECT_EQ(Open("incarnation-1", 2).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Register(Agent1()).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(members_.Beat({.stream = 1}, now_).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Register(Agent1("incarnation-2")).ok());
  EXPECT_TRUE(lost_.empty());  // it was lost before
}

TEST_F(MembershipTest, UnknownIncarnationMustRegister) {
  const absl::Status status = Open("incarnation-9", 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("register first"));
}

TEST_F(MembershipTest, RegistrationMayBeRepeated) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  EXPECT_TRUE(Register(Agent1()).ok());
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kAlive);
}

TEST_F(MembershipTest, NameOfALiveAgentIsHeld) {
  ASSERT_TRUE(Register(Agent1()).ok());
  RegisterAgent other = Agent1("incarnation-2");
  EXPECT_EQ(Register(other).code(), absl::StatusCode::kAlreadyExists);  // joining counts
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  const absl::Status status = Register(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("n1/0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10.0.0.1"));
}

TEST_F(MembershipTest, AnAgentStartedAgainOnItsNodeTakesItsNamesOver) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  members_.Assign({"n1/0", "job-1", 1, 0});
  members_.Close(1, now_);
  RegisterAgent elsewhere = Agent1("incarnation-3");
  elsewhere.node = "n9";
  EXPECT_EQ(Register(elsewhere).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Register(Agent1("incarnation-2")).ok());
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].incarnation, "incarnation-1");
  ASSERT_EQ(lost_[0].assignments.size(), 1u);
  EXPECT_EQ(lost_[0].assignments[0].job_id, "job-1");
  EXPECT_FALSE(members_.FindWorker("n1/0")->assignment.has_value());
  EXPECT_EQ(members_.FindAgent("incarnation-1"), nullptr);
}

TEST_F(MembershipTest, ADeviceBelongsToOneWorker) {
  RegisterAgent a = Agent1();
  a.workers = {{"a", "cuda:0", DeviceKind::kCuda, 0}};
  RegisterAgent b = Agent1("incarnation-2");
  b.workers = {{"b", "cuda:0", DeviceKind::kCuda, 0}};
  ASSERT_TRUE(Register(a).ok());
  const absl::Status status = Register(b);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda:0 of n1"));
  b.node = "n2";
  EXPECT_TRUE(Register(b).ok());
}

TEST_F(MembershipTest, BadRegistrationsAreNamed) {
  const struct {
    const char* what;
    std::function<void(RegisterAgent*)> spoil;
    absl::StatusCode code;
    const char* text;
  } rows[] = {
      {"short id", [](auto* r) { r->incarnation = "x"; }, absl::StatusCode::kInvalidArgument,
       "incarnation"},
      {"node", [](auto* r) { r->node = "a b"; }, absl::StatusCode::kInvalidArgument,
       "node=\"a b\""},
      {"none", [](auto* r) { r->workers.clear(); }, absl::StatusCode::kInvalidArgument, "workers"},
      {"twice", [](auto* r) { r->workers[1].name = "n1/0"; }, absl::StatusCode::kInvalidArgument,
       "appears twice"},
      {"device", [](auto* r) { r->workers[0].device = "cuda:0"; },
       absl::StatusCode::kInvalidArgument, "cuda:0"},
      {"version", [](auto* r) { r->protocol_version = 2; }, absl::StatusCode::kFailedPrecondition,
       "protocol_version=2"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.what);
    RegisterAgent request = Agent1();
    row.spoil(&request);
    const absl::Status status = Register(request);
    EXPECT_EQ(status.code(), row.code);
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.text));
    EXPECT_TRUE(members_.agents().empty());
  }
}

TEST_F(MembershipTest, ANewerStreamReplacesTheOlder) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  EXPECT_EQ(replaced_, 0u);
  ASSERT_TRUE(Open("incarnation-1", 2).ok());
  EXPECT_EQ(replaced_, 1u);
  members_.Close(1, now_);  // late news of the old one
  EXPECT_EQ(StateOf("incarnation-1"), AgentState::kAlive);
  EXPECT_EQ(members_.Beat({.stream = 1}, now_).code(), absl::StatusCode::kAborted);
}

TEST_F(MembershipTest, BatchesAreCountedOnceAndWithoutGaps) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  EXPECT_TRUE(*members_.AcceptBatch(1, 1, now_));
  EXPECT_FALSE(*members_.AcceptBatch(1, 1, now_));
  EXPECT_EQ(members_.AcceptBatch(1, 3, now_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(*members_.AcceptBatch(1, 2, now_));
}

TEST_F(MembershipTest, DrainingOutlivesARegistration) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  ASSERT_TRUE(members_.Drain("n1/0", false).ok());
  EXPECT_FALSE(members_.IsIdle(*members_.FindWorker("n1/0")));
  members_.Close(1, now_);
  ASSERT_TRUE(Register(Agent1("incarnation-2")).ok());
  ASSERT_TRUE(Open("incarnation-2", 2).ok());
  EXPECT_FALSE(members_.IsIdle(*members_.FindWorker("n1/0")));
  ASSERT_TRUE(members_.Drain("n1/0", true).ok());
  EXPECT_TRUE(members_.IsIdle(*members_.FindWorker("n1/0")));
  EXPECT_EQ(members_.Drain("nobody", false).code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, NobodyIsLostForATimeInWhichThisProcessStoodStill) {
  ASSERT_TRUE(Register(Agent1()).ok());
  ASSERT_TRUE(Open("incarnation-1", 1).ok());
  Advance(absl::Milliseconds(100));
  now_ += absl::Hours(1);
  EXPECT_TRUE(members_.Tick(now_).empty());
  EXPECT_EQ(Advance(absl::Seconds(2)).size(), 1u);
}

TEST_F(MembershipTest, HeartbeatsStretchWithTheClusterAndLostOnesMakeRoom) {
  Membership members({.max_workers = 4, .workers_at_full_rate = 2});
  std::vector<LostAgent> lost;
  EXPECT_EQ(members.heartbeat_interval(), absl::Milliseconds(500));
  const auto agent = [](int i) {
    RegisterAgent request = Agent1(absl::StrCat("incarnation-", i));
    request.node = absl::StrCat("n", i);
    for (auto& worker : request.workers) worker.name = absl::StrCat(request.node, worker.name);
    return request;
  };
  ASSERT_TRUE(members.Register(agent(1), now_, &lost).ok());
  ASSERT_TRUE(members.Register(agent(2), now_, &lost).ok());
  EXPECT_EQ(members.heartbeat_interval(), absl::Seconds(1));
  EXPECT_EQ(members.heartbeat_timeout(), absl::Seconds(3));
  EXPECT_EQ(members.Register(agent(3), now_, &lost).code(), absl::StatusCode::kResourceExhausted);
  members.Tick(now_ + absl::Seconds(60));  // neither has opened its stream
  EXPECT_TRUE(members.Register(agent(3), now_, &lost).ok());
  EXPECT_EQ(members.workers().size(), 4u);
}

}  // namespace
}  // namespace muster
