#include "cli/patience.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/describe_end.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

const absl::Status kAway = absl::UnavailableError("connection refused");

class PatienceTest : public ::testing::Test {
 protected:
  std::vector<std::string> notes_;
  Patience patience_{absl::Minutes(15),
                     [this](const std::string& text) { notes_.push_back(text); }};
};

TEST_F(PatienceTest, NobodyIsWaitedForWhoNeverAnswered) {
  EXPECT_FALSE(patience_.AskAgain(kAway, absl::Seconds(1)));
  EXPECT_THAT(notes_, ElementsAre());
}

TEST_F(PatienceTest, AnAbsenceIsToldOnceAndItsEnd) {
  EXPECT_FALSE(patience_.AskAgain(absl::OkStatus(), absl::Seconds(1)));
  for (int second : {2, 3, 600}) {
    EXPECT_TRUE(patience_.AskAgain(kAway, absl::Seconds(second)));
  }
  EXPECT_TRUE(patience_.AskAgain(absl::DeadlineExceededError("slow"), absl::Seconds(601)));
  EXPECT_FALSE(patience_.AskAgain(absl::OkStatus(), absl::Seconds(604)));
  EXPECT_FALSE(patience_.AskAgain(absl::OkStatus(), absl::Seconds(605)));
  EXPECT_THAT(notes_, ElementsAre("coordinator away, training goes on; retrying",
                                  "the coordinator is back after 10 min 3 s"));
}

TEST_F(PatienceTest, ItHasAnEnd) {
  EXPECT_FALSE(patience_.AskAgain(absl::OkStatus(), absl::ZeroDuration()));
  EXPECT_TRUE(patience_.AskAgain(kAway, absl::Minutes(15)));
  EXPECT_FALSE(patience_.AskAgain(kAway, absl::Minutes(15) + absl::Seconds(1)));
}

TEST_F(PatienceTest, AnAnswerThatRefusesIsAnAnswer) {
  EXPECT_FALSE(patience_.AskAgain(absl::OkStatus(), absl::Seconds(1)));
  EXPECT_FALSE(patience_.AskAgain(absl::NotFoundError("no such job"), absl::Seconds(2)));
  EXPECT_THAT(notes_, ElementsAre());
}

TEST(DescribeEndTest, SaysWhatToDoNext) {
  struct Row {
    v1::JobState state;
    int code;
    const char* text;
  };
  const Row rows[] = {
      {v1::JOB_STATE_FAILED, kExitJobFailed,
       "job-1 failed: why; muster logs job-1 shows its output, muster restart job-1 submits it "
       "again"},
      {v1::JOB_STATE_CANCELLED, kExitInterrupted,
       "job-1 was cancelled: why; muster restart job-1 submits it again"},
      {v1::JOB_STATE_EXITED, kExitRerunElsewhere,
       "job-1 left with exit code 16: why; it shall be rerun on other devices: muster restart "
       "job-1"},
      {v1::JOB_STATE_EXITED, kExitValidationFailed,
       "job-1 left with exit code 17: why; a result failed its validation: muster events job-1 has "
       "the evidence"},
  };
  for (const Row& row : rows) {
    v1::JobStatus job;
    job.set_job_id("job-1");
    job.set_state(row.state);
    job.set_exit_code(row.code);
    job.set_reason("why");
    EXPECT_EQ(DescribeEnd(job), row.text);
  }
}

v1::JobStatus EndedJob(v1::JobState state, const std::string& reason) {
  v1::JobStatus job;
  job.set_job_id("job-1");
  job.set_state(state);
  job.set_reason(reason);
  job.mutable_cause()->set_rank(2);
  job.mutable_cause()->set_worker("b/0");
  job.mutable_cause()->set_node("b");
  job.mutable_cause()->set_text("rank 2 (worker b/0, node b): the trainer was killed by signal 9");
  return job;
}

TEST(DescribeEndTest, BeginsWithTheFirstCauseAndSaysWhatFollowed) {
  EXPECT_EQ(DescribeFirstCause(EndedJob(
                v1::JOB_STATE_FAILED,
                "rank 2 (worker b/0, node b): the trainer was killed by signal 9; 3 attempts "
                "followed, the last of which failed: rank 0 (worker a/0, node a): hang")),
            "job-1 failed: rank 2 (worker b/0, node b): the trainer was killed by signal 9; 3 "
            "attempts followed, the last of which failed: rank 0 (worker a/0, node a): hang");
  // A reason that is another one leaves the cause as it is.
  EXPECT_EQ(DescribeFirstCause(EndedJob(v1::JOB_STATE_FAILED, "connection refused")),
            "job-1 failed: rank 2 (worker b/0, node b): the trainer was killed by signal 9");
}

TEST(DescribeEndTest, WhatACancelledJobSurvivedIsNoCause) {
  EXPECT_EQ(DescribeFirstCause(EndedJob(v1::JOB_STATE_CANCELLED, "cancelled: enough")),
            "job-1 was cancelled: cancelled: enough");
}

}  // namespace
}  // namespace muster
