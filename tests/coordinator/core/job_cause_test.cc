// The first cause is what is said in the end: by the reason, the cause and the last event, whatever
// order the news come in and whatever follows.
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class JobCauseTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int node = 1; node <= 3; ++node) cluster_.Join(node);
    job_ = cluster_.Submit({.world_size = 3, .save = "/ckpt"});
    cluster_.Phase(job_, "training");
    cluster_.Step(job_, 7);
    cluster_.Step(job_, 8);
  }
  const JobMachine& job() { return cluster_.Job(job_); }
  void Symptom(int rank) {
    cluster_.Report(
        job_, rank,
        FailedMessage{.reason = "all-reduce 12 of dp: connection refused", .collective = true});
  }
  void Killed(int rank, int signal) {
    cluster_.Report(job_, rank,
                    ExitedReport{.signal = signal, .last_log_lines = {"step 8", "bad thing", ""}});
  }
  std::string LastStateEvent() {
    std::string text;
    for (const auto& entry : job().history().events().entries()) {
      if (entry.value.kind == "failed" || entry.value.kind == "cancelled") text = entry.value.text;
    }
    return text;
  }
  void ExpectCauseIsRank1Killed() {
    ASSERT_TRUE(job().cause().has_value());
    EXPECT_EQ(job().cause()->rank, 1);
    EXPECT_EQ(job().cause()->signal, 9);
    EXPECT_EQ(job().cause()->worker, "n2/0");
    EXPECT_EQ(job().cause()->node, "n2");
    EXPECT_EQ(job().cause()->iteration, 8);
    EXPECT_THAT(job().cause()->last_log_lines, ElementsAre("step 8", "bad thing", ""));
    EXPECT_EQ(job().cause()->text,
              "rank 1 (worker n2/0, node n2): the trainer was killed by signal 9 (SIGKILL), while "
              "training, after iteration 8; its last line: bad thing");
  }

  CoreCluster cluster_;
  std::string job_;
};

TEST_F(JobCauseTest, TheCauseComesFirst) {
  Killed(1, 9);
  Symptom(0);
  Symptom(2);
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().reason(), job().cause()->text);
  EXPECT_EQ(LastStateEvent(), job().cause()->text);
}

TEST_F(JobCauseTest, SymptomsOfOtherNodesComeFirst) {
  Symptom(0);
  Symptom(2);
  EXPECT_THAT(job().reason(), HasSubstr("waiting for its cause"));
  cluster_.Advance(absl::Seconds(1));
  Killed(1, 9);
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().reason(), job().cause()->text);
  EXPECT_EQ(LastStateEvent(), job().cause()->text);
}

TEST_F(JobCauseTest, TheSameNodeSaysSymptomAndLeavesWithACodeBeforeTheCause) {
  Symptom(0);
  cluster_.Report(job_, 0, ExitedReport{.exit_code = 1});  // still the same symptom
  Killed(1, 9);
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().reason(), job().cause()->text);
}

TEST_F(JobCauseTest, LaterDeathsDoNotReplaceIt) {
  cluster_.SetObedient(false);
  Killed(1, 9);
  Killed(0, 11);
  cluster_.Die(3);
  cluster_.Advance(absl::Seconds(5));
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().reason(), job().cause()->text);
}

TEST_F(JobCauseTest, ACancelThatFollowsKeepsIt) {
  Symptom(0);
  cluster_.Handle(CancelJob{job_, "enough", CancelMode::kStop});
  Killed(1, 9);
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().state(), JobState::kCancelled);
  EXPECT_EQ(job().reason(), absl::StrCat("cancelled: enough; on the way: ", job().cause()->text));
  EXPECT_EQ(LastStateEvent(), job().reason());
}

TEST_F(JobCauseTest, AfterTheEndACancelChangesNothing) {
  Killed(1, 9);
  cluster_.Handle(CancelJob{job_, "enough", CancelMode::kKill});
  ExpectCauseIsRank1Killed();
  EXPECT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().reason(), job().cause()->text);
}

TEST_F(JobCauseTest, ANodeThatFellSilentIsTheCauseOfWhatTheOthersNoticed) {
  cluster_.Cut(2);  // its power is gone: nobody reports, no stream ends
  cluster_.Advance(absl::Seconds(1));
  Symptom(0);
  Symptom(2);
  cluster_.Advance(absl::Seconds(2));
  ASSERT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().cause()->rank, 1);
  EXPECT_EQ(job().cause()->node, "n2");
  EXPECT_THAT(job().reason(),
              StartsWith("rank 1 (worker n2/0, node n2): worker n2/0 was lost: no sign of life"));
}

TEST(JobCauseInLargeClusterTest, ASilentNodeIsFoundThoughHeartbeatsAreStretched) {
  CoordinatorOptions options;
  options.membership.workers_at_full_rate = 1;  // three workers: a timeout of 4.5 s
  CoreCluster cluster(options);
  for (int node = 1; node <= 3; ++node) cluster.Join(node);
  const std::string job = cluster.Submit({.world_size = 3});
  cluster.Phase(job, "training");
  cluster.Cut(2);
  cluster.Report(job, 0, FailedMessage{.reason = "all-reduce", .collective = true});
  cluster.Advance(absl::Seconds(6));
  ASSERT_EQ(cluster.Job(job).state(), JobState::kFailed);
  EXPECT_EQ(cluster.Job(job).cause()->node, "n2");
}

TEST_F(JobCauseTest, WithoutAnySilentNodeTheFirstSymptomIsAllThatIsKnown) {
  Symptom(2);
  Symptom(0);
  cluster_.Advance(absl::Seconds(3));
  ASSERT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().cause()->rank, 2);
  EXPECT_THAT(job().reason(), AllOf(HasSubstr("connection refused"), HasSubstr("iteration 8"),
                                    Not(HasSubstr("waiting for its cause"))));
}

TEST_F(JobCauseTest, ARankThatSaysWhyIsTheCauseWithItsLastLines) {
  cluster_.Report(job_, 1, LogLines{{"reading shard 3", "data/x.bin: No such file"}});
  cluster_.Report(job_, 1, FailedMessage{.reason = "data/x.bin: No such file"});
  EXPECT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().reason(),
            "rank 1 (worker n2/0, node n2): data/x.bin: No such file, while training, after "
            "iteration 8");
  EXPECT_THAT(job().cause()->last_log_lines,
              ElementsAre("reading shard 3", "data/x.bin: No such file"));
}

TEST_F(JobCauseTest, ALostNodeIsTheCauseWithTheLastLinesThatWereHeard) {
  cluster_.Report(job_, 1, LogLines{{"step 8"}});
  cluster_.Die(2);
  cluster_.Advance(absl::Seconds(5));
  ASSERT_EQ(job().state(), JobState::kFailed);
  EXPECT_EQ(job().cause()->rank, 1);
  EXPECT_THAT(job().reason(), HasSubstr("worker n2/0 was lost: "));
  EXPECT_THAT(job().reason(), HasSubstr("after iteration 8"));
  EXPECT_THAT(job().cause()->last_log_lines, ElementsAre("step 8"));
}

TEST_F(JobCauseTest, ATrainerThatCannotStartSaysWhy) {
  CoreCluster cluster;
  cluster.Join(1, 2);
  const std::string job = cluster.Submit();
  cluster.Report(job, 1, ExitedReport{.launch_error = "muster-trainer: Permission denied"});
  EXPECT_EQ(cluster.Job(job).reason(),
            "rank 1 (worker n1/1, node n1): the trainer could not be started: muster-trainer: "
            "Permission denied");
}

TEST_F(JobCauseTest, AnEvilLastLineStaysOneShortLine) {
  cluster_.Report(job_, 1,
                  ExitedReport{.exit_code = 3,
                               .last_log_lines = {"\x1b[31m" + std::string(5000, 'x') + "\n\n"}});
  EXPECT_LT(job().reason().size(), 400u);
  EXPECT_EQ(job().reason().find('\x1b'), std::string::npos);
  EXPECT_EQ(job().reason().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace muster
