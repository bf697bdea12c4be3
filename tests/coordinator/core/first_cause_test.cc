// What is said of a job that has failed more than once: the first cause of those failures that
// still count, also by a coordinator that was restarted in between.
#include "tests/coordinator/core/restart_cluster.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class FirstCauseTest : public RestartTest {
 protected:
  void SetUp() override {
    Join(1);
    Join(2);
    job_ = Submit({.train_iters = 1000, .max_restarts = 2, .restart_window_s = 60});
    Form(1);
  }
  int NodeOf(int rank) { return Job(job_).ranks()[rank].node == "n1" ? 1 : 2; }
  void Say(int rank, const ReportBody& body) { Report(NodeOf(rank), job_, rank, body); }
  // All ranks come through, and a step is committed.
  void Form(int64_t iteration) {
    for (const char* phase : {"forming", "training"}) {
      for (int rank : {0, 1}) Say(rank, PhaseMessage{.phase = phase});
    }
    StepMessage step;
    step.iteration = iteration;
    Say(1, step);
    ASSERT_EQ(Job(job_).state(), JobState::kRunning);
  }
  void Kill(int rank, int signal) { Say(rank, ExitedReport{.signal = signal}); }

  std::string job_;
};

TEST_F(FirstCauseTest, ItIsWhatTheJobFailsWith) {
  Kill(1, 11);
  Form(2);
  EXPECT_EQ(Job(job_).cause()->signal, 11);  // while it trains on
  EXPECT_EQ(Job(job_).reason(), "");
  Kill(0, 9);
  EXPECT_EQ(Job(job_).state(), JobState::kRecovering);
  EXPECT_THAT(Job(job_).reason(), HasSubstr("signal 9"));  // what it recovers from now
  Form(3);
  Kill(0, 9);
  ASSERT_EQ(Job(job_).state(), JobState::kFailed);
  EXPECT_EQ(Job(job_).cause()->rank, 1);
  EXPECT_EQ(Job(job_).cause()->signal, 11);
  EXPECT_EQ(Job(job_).cause()->iteration, 1);
  EXPECT_THAT(Job(job_).reason(),
              AllOf(StartsWith(Job(job_).cause()->text),
                    HasSubstr("; 2 attempts followed, the last of which failed: rank 0 ("),
                    HasSubstr("after iteration 3; 2 restarts within 1m are used up")));
}

TEST_F(FirstCauseTest, WhatItRecoveredFromLongBeforeIsNone) {
  Kill(1, 11);
  Form(2);
  Advance(absl::Seconds(61));
  Kill(0, 9);
  EXPECT_EQ(Job(job_).cause()->signal, 9);
  Form(3);
  Kill(0, 9);
  Form(4);
  Kill(0, 9);
  ASSERT_EQ(Job(job_).state(), JobState::kFailed);
  EXPECT_EQ(Job(job_).cause()->rank, 0);
  EXPECT_EQ(Job(job_).cause()->iteration, 2);
  EXPECT_THAT(Job(job_).reason(), testing::Not(HasSubstr("signal 11")));
}

TEST_F(FirstCauseTest, ARestartedCoordinatorKnowsIt) {
  Kill(1, 11);
  Form(2);
  Kill(0, 9);
  Form(3);
  Restart();
  ASSERT_TRUE(Connect(1).ok());
  ASSERT_TRUE(Connect(2).ok());
  Advance(absl::Milliseconds(200));
  EXPECT_EQ(Job(job_).cause()->signal, 11);
  Kill(1, 6);
  ASSERT_EQ(Job(job_).state(), JobState::kFailed);
  EXPECT_EQ(Job(job_).cause()->signal, 11);
  EXPECT_THAT(Job(job_).reason(),
              HasSubstr("; 2 attempts followed, the last of which failed: rank 1 ("));
}

TEST_F(FirstCauseTest, ACancellationNamesTheOpenIncidentOnly) {
  Kill(1, 11);
  Form(2);
  Handle(CancelJob{.job_id = job_, .reason = "enough", .mode = CancelMode::kKill});
  EXPECT_EQ(Job(job_).reason(), "cancelled: enough");
}

TEST_F(FirstCauseTest, ALostNodeIsTheKindOfItsEventAndItsCause) {
  beating_.erase(2);
  Handle(CloseStream{2});
  Advance(absl::Seconds(3));
  ASSERT_EQ(Job(job_).state(), JobState::kRecovering);
  EXPECT_EQ(Job(job_).cause()->kind, "node_lost");
  int num_events = 0;
  for (const auto& entry : Job(job_).history().events().entries()) {
    num_events += entry.value.kind == "node_lost";
    EXPECT_NE(entry.value.kind, "agent_lost");
  }
  EXPECT_EQ(num_events, 1);
}

}  // namespace
}  // namespace muster
