// What a job waits for, whom it names, and what it does when nothing moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/job_machine.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class JobPhasesTest : public testing::Test {
 protected:
  JobPhasesTest() { Make(4, 2); }

  // `slots` ranks a node: nodes n0, n1, ...; their agents are "agent-0", ...
  void Make(int world_size, int slots) {
    job_ = std::make_unique<JobMachine>(
        JobMachine::Identity{.job_id = "job-1", .sequence = 1},
        ParseJobSpec(TestSpec({.world_size = world_size, .save = "/ckpt"})).spec, 10, options_,
        now_);
    job_->Enqueue(now_);
    std::vector<RankSlot> ranks(world_size);
    for (int r = 0; r < world_size; ++r) {
      const int node = r / slots;
      ranks[r].worker = absl::StrCat("n", node, "/", r % slots);
      ranks[r].node = absl::StrCat("n", node);
      ranks[r].incarnation = absl::StrCat("agent-", node);
    }
    job_->Start({.ranks = std::move(ranks), .data_parallel_size = world_size}, now_, &effects_);
    signs_.of_agent = [this](const std::string& agent) -> std::optional<absl::Time> {
      const auto silent = silent_since_.find(agent);
      return silent == silent_since_.end() ? now_ : silent->second;
    };
  }
  void Report(int rank, const ReportBody& body) { job_->OnReport(rank, body, now_, &effects_); }
  void Phase(int rank, const std::string& phase, const std::string& detail = "") {
    Report(rank, PhaseMessage{.phase = phase, .detail = detail});
  }
  void All(const std::string& phase) {
    for (int rank = 0; rank < job_->world_size(); ++rank) Phase(rank, phase);
  }
  void Step(int64_t iteration, double elapsed_ms = 1000) {
    StepMessage step;
    step.iteration = iteration;
    step.elapsed_ms = elapsed_ms;
    Report(job_->world_size() - 1, step);
  }
  void Advance(absl::Duration by) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ = std::min(end, now_ + absl::Milliseconds(500));
      job_->Tick(now_, &effects_, signs_);
    }
  }
  void Train() {
    All("training");
    for (int i = 1; i <= 3; ++i) {
      Advance(absl::Seconds(1));
      Step(i);
    }
  }
  JobWait Wait() { return job_->Wait(signs_).value_or(JobWait{}); }
  int NumEvents(const std::string& kind) {
    int count = 0;
    for (const auto& entry : job_->history().events().entries()) count += entry.value.kind == kind;
    return count;
  }
  std::string Event(const std::string& kind) {
    std::string text;
    for (const auto& entry : job_->history().events().entries()) {
      if (entry.value.kind == kind) text = entry.value.text;
    }
    return text;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  JobOptions options_;
  std::unique_ptr<JobMachine> job_;
  JobEffects effects_;
  SignsOfLife signs_;
  std::map<std::string, absl::Time> silent_since_;
};

TEST_F(JobPhasesTest, TheWaitIsForThoseWhoAreFurthestBehind) {
  EXPECT_EQ(Wait().phase, "start");
  Phase(0, "forming");
  Phase(1, "forming");
  Phase(2, "forming");
  EXPECT_EQ(Wait().phase, "start");
  EXPECT_THAT(Wait().missing, AllOf(HasSubstr("rank 3 (node n1, worker n1/1): launched"),
                                    Not(HasSubstr("rank 0")), Not(HasSubstr("ranks"))));
  Phase(3, "forming");
  EXPECT_EQ(Wait().phase, "forming");
  EXPECT_THAT(Wait().missing, HasSubstr("ranks 0-1 (node n0, workers n0/0-1): forming"));
  All("loading");
  EXPECT_EQ(Wait().phase, "load");
  Phase(0, "training");
  EXPECT_EQ(Wait().phase, "load");
  All("training");
  EXPECT_EQ(Wait().phase, "step");
  Phase(0, "saving");
  EXPECT_EQ(Wait().phase, "save");
  All("evaluating");
  EXPECT_EQ(Wait().phase, "evaluation");
}

TEST_F(JobPhasesTest, NobodyIsMissingInAStepOfTheUsualLength) {
  Train();
  Advance(absl::Seconds(1));
  EXPECT_EQ(Wait().phase, "step");
  EXPECT_EQ(Wait().missing, "");
  Advance(absl::Seconds(2));
  EXPECT_THAT(Wait().missing, HasSubstr("ranks 0-1 (node n0"));
}

TEST_F(JobPhasesTest, OverdueIsSaidOnceWithAllWhoAreMissing) {
  Train();
  // 3 x 1 s + 1 s; the percentile may be 9 % too high.
  const absl::Duration limit = job_->phase_limits().Limit(WaitPhase::kStep);
  EXPECT_GE(limit, absl::Seconds(4));
  EXPECT_LE(limit, absl::Seconds(4.3));
  silent_since_["agent-1"] = now_;
  const int64_t version = job_->version();
  Advance(absl::Seconds(5));
  EXPECT_GT(job_->version(), version);  // whoever watches hears of it
  EXPECT_EQ(NumEvents("overdue"), 1);
  EXPECT_THAT(Event("overdue"),
              HasSubstr("phase step: no progress for 4.5s (limit 4s, learned from 3 steps, 99% of "
                        "them within 1s)"));
  EXPECT_THAT(Event("overdue"),
              HasSubstr("missing: ranks 2-3 (node n1, workers n1/0-1): training, last sign of life "
                        "4.5s ago; ranks 0-1 (node n0, workers n0/0-1): training"));
  EXPECT_TRUE(Wait().overdue);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  Advance(absl::Minutes(5));
  EXPECT_EQ(NumEvents("overdue"), 1);
  Step(4);
  EXPECT_FALSE(Wait().overdue);
  EXPECT_THAT(Event("resumed"), HasSubstr("phase step: progress again after 5m5s"));
}

TEST_F(JobPhasesTest, AtTheCapTheJobFailsAndTheCauseNamesAll) {
  All("forming");
  Advance(options_.phases.forming.cap - absl::Seconds(1));
  EXPECT_FALSE(job_->ended());
  Advance(absl::Seconds(1));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_THAT(job_->reason(),
              AllOf(HasSubstr("phase forming: no progress for 10m"), HasSubstr("none seen before"),
                    HasSubstr("ranks 0-1 (node n0"), HasSubstr("ranks 2-3 (node n1")));
  EXPECT_EQ(job_->cause()->text, job_->reason());
  EXPECT_EQ(Event("failed"), job_->reason());
}

TEST_F(JobPhasesTest, ASlowStartHasItsOwnLimitAndProgressResetsIt) {
  // A load of three hours that shows that it moves: no default time-out guards it wrongly.
  All("loading");
  for (int shard = 1; shard <= 6; ++shard) {
    Advance(absl::Minutes(30));
    Phase(2, "loading", absl::StrCat("shard ", shard, " of 6"));
    ASSERT_EQ(job_->state(), JobState::kForming);
  }
  EXPECT_EQ(job_->phase_limits().Samples(WaitPhase::kLoad).longest, absl::Minutes(30));
}

TEST_F(JobPhasesTest, WhoWaitsForTheMissingOneDoesNotResetItsLimit) {
  for (const int rank : {0, 1, 2}) Phase(rank, "forming");
  for (int i = 0; i < 13; ++i) {
    Advance(absl::Seconds(10));
    for (const int rank : {0, 1, 2}) Phase(rank, "forming", absl::StrCat("tried ", i, " times"));
  }
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_EQ(job_->cause()->rank, 3);
  EXPECT_THAT(job_->reason(), HasSubstr("phase start"));
}

TEST_F(JobPhasesTest, ARepeatedReportIsNoProgress) {
  All("loading");
  for (int i = 0; i < 61; ++i) {
    Advance(absl::Minutes(1));
    All("loading");
  }
  EXPECT_EQ(job_->state(), JobState::kFailed);
}

TEST_F(JobPhasesTest, HeartbeatsThatTellOfStepsAreProgress) {
  Train();
  const absl::Duration limit = options_.phases.step.floor;
  for (int64_t i = 4; i < 20; ++i) {
    Advance(limit - absl::Seconds(1));
    job_->OnProgress("agent-0", {"job-1", 1, i}, now_);
    EXPECT_EQ(job_->committed(), i);
  }
  EXPECT_EQ(NumEvents("overdue"), 0);
  EXPECT_EQ(job_->iteration(), 3);  // the ledger's is that of the reports
}

TEST_F(JobPhasesTest, HeartbeatsOfAnotherEpochOrAnOlderStepAreNot) {
  Train();
  for (int i = 0; i < 12; ++i) {
    Advance(absl::Seconds(1));
    job_->OnProgress("agent-0", {"job-1", 1, 3}, now_);
    job_->OnProgress("agent-0", {"job-1", 2, 100 + i}, now_);
    job_->OnProgress("agent-0", {"job-2", 1, 100 + i}, now_);
  }
  EXPECT_EQ(NumEvents("overdue"), 1);
  EXPECT_EQ(job_->committed(), 3);
}

TEST_F(JobPhasesTest, ACommittedStepEndsFormingWhateverTheLastNewsOfTheOthers) {
  All("loading");
  job_->OnProgress("agent-1", {"job-1", 1, 1}, now_);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(Wait().phase, "step");
}

TEST_F(JobPhasesTest, WhoIsAStepBehindIsNamedFirst) {
  Train();
  job_->OnProgress("agent-0", {"job-1", 1, 4}, now_);
  job_->OnProgress("agent-1", {"job-1", 1, 3}, now_);
  Advance(absl::Seconds(5));
  EXPECT_THAT(Wait().missing, testing::StartsWith("ranks 2-3 (node n1"));
}

TEST_F(JobPhasesTest, AStepThatWasReportedLateTeachesItsOwnLength) {
  Train();
  Advance(absl::Minutes(5));  // the network was cut; then the batch comes
  Step(4, 1500);
  EXPECT_EQ(job_->phase_limits().Samples(WaitPhase::kStep).longest, absl::Milliseconds(1500));
}

TEST_F(JobPhasesTest, ASavesOwnFigureIsLearned) {
  Train();
  All("saving");
  Advance(absl::Seconds(2));
  Report(0, CheckpointMessage{.iteration = 3, .path = "/c", .ok = true, .elapsed_ms = 90'000});
  EXPECT_EQ(job_->phase_limits().Samples(WaitPhase::kSave).longest, absl::Seconds(90));
}

TEST_F(JobPhasesTest, TimeInWhichThisProcessStoodStillCountsForNobody) {
  Train();
  now_ += absl::Hours(2);
  job_->Tick(now_, &effects_, signs_);
  EXPECT_EQ(NumEvents("overdue"), 0);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  Advance(absl::Seconds(5));
  EXPECT_EQ(NumEvents("overdue"), 1);
}

TEST_F(JobPhasesTest, PhaseNamesAndDetailsOfTrainersAreBounded) {
  Phase(0, std::string(1 << 20, 'x'), std::string(1 << 20, 'y'));
  EXPECT_EQ(job_->ranks()[0].phase.size(), 64u);
  EXPECT_EQ(job_->ranks()[0].phase_detail.size(), 256u);
  Phase(0, "exited");  // a name that is ours: it is not gone for all that
  EXPECT_EQ(job_->ranks()[0].stage, RankStage::kLoad);
}

TEST_F(JobPhasesTest, ALateWordOfADoneRankDoesNotBringItBack) {
  Train();
  Report(0, DoneMessage{.reason = "trained"});
  Phase(0, "training");
  EXPECT_EQ(job_->ranks()[0].phase, "done");
  for (const int rank : {1, 2, 3}) Report(rank, DoneMessage{.reason = "trained"});
  EXPECT_EQ(job_->state(), JobState::kCompleted);
}

// Its agent may be kept for the sake of another job, and then nobody says that it is lost.
TEST_F(JobPhasesTest, ASymptomWithoutACauseIsLaidToTheRankThatIsNotHeard) {
  for (const bool silent : {true, false}) {
    Make(3, 1);
    Train();
    silent_since_.clear();
    if (silent) silent_since_["agent-1"] = now_;
    Report(0, FailedMessage{.reason = "all-reduce: connection closed", .collective = true});
    EXPECT_THAT(job_->reason(), HasSubstr("waiting for its cause"));
    Advance(absl::Seconds(5));
    ASSERT_TRUE(job_->cause().has_value());
    EXPECT_EQ(job_->cause()->rank, silent ? 1 : 0);
    EXPECT_EQ(job_->cause()->kind, silent ? "agent_lost" : "collective");
    EXPECT_THAT(job_->cause()->text, HasSubstr(silent ? "its agent has not been heard for"
                                                      : "all-reduce: connection closed"));
    EXPECT_EQ(job_->state(), JobState::kFailed);
  }
}

TEST_F(JobPhasesTest, ThousandsOfRanksFormWithAShortTextAtEveryMoment) {
  Make(4096, 8);
  size_t longest = 0;
  const std::vector<std::string> phases = {"forming", "building", "loading", "training"};
  for (const std::string& phase : phases) {
    for (int i = 0; i < 4096; ++i) {
      Phase((i * 1597) % 4096, phase);  // in an order that scatters them
      if (i % 128 == 0) {
        longest = std::max({longest, Wait().missing.size(), job_->Progress().size()});
        ASSERT_NE(Wait().missing, "");
      }
    }
  }
  EXPECT_LT(longest, 1500u);
  EXPECT_EQ(job_->state(), JobState::kRunning);
  EXPECT_EQ(job_->Progress(), "ranks 0-4095: training");
  Advance(absl::Minutes(31));
  EXPECT_EQ(job_->state(), JobState::kFailed);
  EXPECT_LT(job_->reason().size(), 1500u);
  EXPECT_THAT(job_->reason(), HasSubstr("and 4032 more ranks (64-4095)"));
}

}  // namespace
}  // namespace muster
