#include "coordinator/server/job_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/convert.h"
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;

class JobConvertTest : public testing::Test {
 protected:
  v1::JobStatus Status(JobDetail detail = JobDetail::kFull) {
    return ToProto(cluster_.Job(job_), detail, cluster_.core().Signs());
  }
  CoreCluster cluster_;
  std::string job_;
};

TEST_F(JobConvertTest, AWaitNamesWhoIsMissingAndTheLimitInForce) {
  cluster_.Join(1, 2);
  cluster_.Join(2, 2);
  job_ = cluster_.Submit({.world_size = 4});
  for (const int rank : {0, 1, 2}) {
    cluster_.Report(job_, rank, PhaseMessage{.phase = "forming"});
  }
  cluster_.Cut(2);
  cluster_.Advance(absl::Seconds(5));
  const v1::JobStatus status = Status();
  EXPECT_EQ(status.wait().phase(), "start");
  EXPECT_EQ(FromProto(status.wait().elapsed()), absl::Seconds(5));
  EXPECT_EQ(FromProto(status.wait().limit()), PhaseLimitOptions().start.floor);
  EXPECT_FALSE(status.wait().overdue());
  EXPECT_EQ(status.wait().missing(),
            "rank 3 (node n2, worker n2/1): launched, last sign of life 5s ago");
  ASSERT_EQ(status.phase_limits_size(), 1);
  EXPECT_EQ(status.phase_limits(0).phase(), "start");
  EXPECT_EQ(status.phase_limits(0).samples(), 3);  // those who came through at once
  EXPECT_THAT(status.progress(), HasSubstr("ranks 0-2 (node n1, n2): forming"));
}

TEST_F(JobConvertTest, WhatWasLearnedIsShown) {
  cluster_.Join(1, 2);
  job_ = cluster_.Submit();
  cluster_.Phase(job_, "training");
  StepMessage step;
  step.iteration = 1;
  step.elapsed_ms = 20'000;
  cluster_.Report(job_, 0, step);
  const v1::JobStatus status = Status();
  for (const auto& limit : status.phase_limits()) {
    if (limit.phase() != "step") continue;
    EXPECT_EQ(FromProto(limit.longest()), absl::Seconds(20));
    // 3 times the 99th percentile, which is known to 9 %, and 1 s.
    EXPECT_GE(FromProto(limit.limit()), absl::Seconds(61));
    EXPECT_LE(FromProto(limit.limit()), absl::Seconds(67));
    EXPECT_GE(limit.samples(), 1);
    return;
  }
  ADD_FAILURE() << "no limit of a step";
}

TEST_F(JobConvertTest, AJobThatWaitsForNothingHasNoWait) {
  job_ = cluster_.Submit();
  EXPECT_FALSE(Status().has_wait());
  cluster_.Join(1, 2);
  EXPECT_TRUE(Status().has_wait());
  EXPECT_FALSE(Status(JobDetail::kSummary).has_wait());
  cluster_.SetObedient(false);
  cluster_.Handle(CancelJob{job_, "", CancelMode::kKill});
  EXPECT_EQ(Status().wait().phase(), "stop");
  cluster_.Report(job_, 0, ExitedReport{.signal = 15});
  cluster_.Report(job_, 1, ExitedReport{.signal = 15});
  EXPECT_FALSE(Status().has_wait());
  EXPECT_TRUE(Status().workers_released());
}

TEST_F(JobConvertTest, AJobOfThousandsOfRanksHasAShortStatus) {
  for (int node = 1; node <= 512; ++node) cluster_.Join(node, 8);
  job_ = cluster_.Submit({.world_size = 4096});
  const v1::JobStatus status = Status();
  EXPECT_LT(status.wait().missing().size(), 1500u);
  EXPECT_THAT(status.wait().missing(), HasSubstr("and 4032 more ranks"));
  EXPECT_LT(status.ByteSizeLong(), 4096u);
}

}  // namespace
}  // namespace muster
