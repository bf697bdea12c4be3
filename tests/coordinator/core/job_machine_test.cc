#include "coordinator/core/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using testing::HasSubstr;

class JobMachineTest : public testing::Test {
 protected:
  explicit JobMachineTest(const TestSpecOptions& spec = {.save = "/ckpt"})
      : job_({.job_id = "job-1", .sequence = 1}, ParseJobSpec(TestSpec(spec)).spec,
             spec.train_iters, options_, now_) {}

  // Effects since the last call, as text.
  std::string Effects() {
    std::string text;
    for (const JobEffect& effect : effects_) {
      if (std::holds_alternative<LaunchRanks>(effect)) text += "launch ";
      if (std::holds_alternative<PublishUniqueId>(effect)) text += "unique_id ";
      if (const auto* d = std::get_if<PublishDirective>(&effect)) {
        text += absl::StrCat(DirectiveKindName(d->directive.kind), "#", d->directive.number, " ");
      }
      if (std::holds_alternative<AbortEpoch>(effect)) text += "abort ";
      if (std::holds_alternative<StopRanks>(effect)) text += "stop ";
      if (std::holds_alternative<EndRendezvous>(effect)) text += "end_rendezvous ";
      if (const auto* r = std::get_if<ReleaseWorker>(&effect)) {
        text += absl::StrCat("release", r->rank, " ");
      }
    }
    effects_.clear();
    return text;
  }
  void Start() {
    job_.Enqueue(now_);
    std::vector<RankSlot> ranks(2);
    for (int r = 0; r < 2; ++r) {
      ranks[r].worker = absl::StrCat("w", r);
      ranks[r].node = absl::StrCat("n", r);
      ranks[r].incarnation = absl::StrCat("incarnation-", r);
    }
    job_.Start({.ranks = ranks, .data_parallel_size = 2}, now_, &effects_);
  }
  void Report(int rank, const ReportBody& body) { job_.OnReport(rank, body, now_, &effects_); }
  void Phase(int rank, const std::string& phase) { Report(rank, PhaseMessage{0, phase, ""}); }
  void Step(int64_t iteration, int64_t applied = 0) {
    StepMessage step;
    step.iteration = iteration;
    step.consumed_samples = 2 * iteration;
    step.applied_directive = applied;
    Report(1, step);
  }
  void Done(int rank, int code = 0) { Report(rank, DoneMessage{0, code, "trained"}); }
  void Exit(int rank, int code) { Report(rank, ExitedReport{.exit_code = code}); }
  void Signal(int rank, int signal) {
    Report(rank, ExitedReport{.signal = signal, .last_log_lines = {"last words"}});
  }
  void Advance(absl::Duration by) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ = std::min(end, now_ + absl::Milliseconds(500));
      job_.Tick(now_, &effects_, signs_);
    }
  }
  std::string LastEvent() { return job_.history().events().newest().value.text; }
  void Run() {  // to RUNNING
    Start();
    Phase(0, "training");
    Phase(1, "training");
    Effects();
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  JobOptions options_;
  JobMachine job_;
  JobEffects effects_;
  SignsOfLife signs_;
};

TEST_F(JobMachineTest, TrainsAndCompletes) {
  Start();
  EXPECT_EQ(job_.state(), JobState::kForming);
  EXPECT_EQ(job_.epoch(), 1);
  EXPECT_EQ(Effects(), "launch ");
  Report(0, PublishUniqueIdMessage{1, "abcd"});
  Report(0, PublishUniqueIdMessage{1, "other"});
  EXPECT_EQ(Effects(), "unique_id ");
  EXPECT_EQ(job_.unique_id(), "abcd");
  Phase(0, "training");
  EXPECT_EQ(job_.state(), JobState::kForming);
  Phase(1, "training");
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Step(1);
  Phase(0, "evaluating");
  EXPECT_EQ(job_.state(), JobState::kEvaluating);
  Phase(0, "saving");
  EXPECT_EQ(job_.state(), JobState::kCheckpointing);
  Phase(0, "training");
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Step(10);
  Done(0);
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Done(1);
  EXPECT_EQ(job_.state(), JobState::kCompleted);
  EXPECT_EQ(job_.exit_code(), 0);
  EXPECT_EQ(Effects(), "end_rendezvous stop ");
  EXPECT_FALSE(job_.released());
  Exit(0, 0);
  Exit(1, 0);
  EXPECT_EQ(Effects(), "release0 release1 ");
  EXPECT_TRUE(job_.released());
  EXPECT_FALSE(job_.cause().has_value());
}

TEST_F(JobMachineTest, FirstStepEndsForming) {
  Start();
  Step(1);
  EXPECT_EQ(job_.state(), JobState::kRunning);
}

TEST_F(JobMachineTest, ExitCodeOfTheTrainersIsTheJobs) {
  Run();
  Done(0, 16);
  Done(1, 16);
  EXPECT_EQ(job_.state(), JobState::kExited);
  EXPECT_EQ(job_.exit_code(), 16);
}

TEST_F(JobMachineTest, AKilledTrainerFailsTheJobAtOnceAndSaysWhere) {
  Run();
  Step(4);
  Signal(1, 9);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.exit_code(), 1);
  EXPECT_EQ(job_.reason(),
            "rank 1 (worker w1, node n1): the trainer was killed by signal 9 (SIGKILL), while "
            "training, after iteration 4; its last line: last words");
  EXPECT_EQ(job_.cause()->signal, 9);
  EXPECT_EQ(job_.cause()->rank, 1);
  EXPECT_EQ(job_.cause()->iteration, 4);
  EXPECT_THAT(job_.cause()->last_log_lines, testing::ElementsAre("last words"));
  EXPECT_EQ(Effects(), "abort end_rendezvous stop release1 ");
  Exit(0, 1);
  EXPECT_EQ(Effects(), "release0 ");
  EXPECT_TRUE(job_.released());
  EXPECT_EQ(job_.cause()->rank, 1);
}

TEST_F(JobMachineTest, ATrainerThatLeavesBeforeItIsDoneFailsTheJobEvenWithCodeZero) {
  Run();
  Exit(0, 0);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.reason(), HasSubstr("exited with code 0 before it was done"));
}

TEST_F(JobMachineTest, ATrainerThatCannotStartFailsTheJob) {
  Start();
  Report(0, ExitedReport{.launch_error = "no such file"});
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.reason(), HasSubstr("could not be started: no such file"));
}

TEST_F(JobMachineTest, ASymptomAbortsAtOnceAndGivesWayToTheCause) {
  Run();
  Report(0, FailedMessage{0, "all-reduce: connection closed", true});
  EXPECT_EQ(job_.state(), JobState::kRunning);
  EXPECT_EQ(Effects(), "abort end_rendezvous ");
  Advance(absl::Seconds(1));
  job_.OnWorkerLost(1, FailureKind::kNodeLost, "no sign of life", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.cause()->rank, 1);
  EXPECT_THAT(job_.reason(), HasSubstr("worker w1 was lost: no sign of life"));
  EXPECT_EQ(Effects(), "release1 stop ");
}

TEST_F(JobMachineTest, ASymptomWithoutACauseIsTheCause) {
  Run();
  Report(0, FailedMessage{0, "all-reduce: timed out", true});
  Report(1, FailedMessage{0, "all-reduce: aborted", true});
  Exit(1, 1);  // a symptom too
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Advance(absl::Seconds(3));
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.cause()->rank, 0);
  EXPECT_THAT(job_.reason(), HasSubstr("timed out"));
}

TEST_F(JobMachineTest, AFailureOutsideACollectiveNeedsNoOther) {
  Run();
  Report(0, FailedMessage{0, "data: file is gone", false});
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_THAT(job_.reason(), HasSubstr("file is gone"));
}

TEST_F(JobMachineTest, ATrainerThatDiesAfterItWasDoneFailsNothing) {
  Run();
  Done(0);
  Signal(0, 15);
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Done(1);
  EXPECT_EQ(job_.state(), JobState::kCompleted);
}

TEST_F(JobMachineTest, FormingWithoutProgressNamesAllWhoAreMissing) {
  Start();
  Phase(0, "training");
  Phase(1, "loading");
  Advance(options_.phases.load.cap - absl::Seconds(1));
  Phase(1, "warming");  // progress
  Advance(absl::Seconds(2));
  EXPECT_EQ(job_.state(), JobState::kForming);
  Advance(options_.phases.load.cap);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.cause()->rank, 1);
  EXPECT_THAT(job_.reason(), HasSubstr("phase load: no progress for 1h"));
  EXPECT_THAT(job_.reason(), HasSubstr("missing: rank 1 (node n1, worker w1): warming"));
}

TEST_F(JobMachineTest, RanksThatAreNeverDoneAreNamed) {
  Run();
  Done(0);
  Advance(options_.phases.step.cap);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  EXPECT_EQ(job_.cause()->rank, 1);
  EXPECT_THAT(job_.reason(), HasSubstr("missing: rank 1 (node n1, worker w1): training"));
  EXPECT_THAT(job_.reason(), testing::Not(HasSubstr("rank 0 (")));
}

TEST_F(JobMachineTest, CancelWhileWaitingNeedsNothing) {
  job_.Enqueue(now_);
  job_.Cancel(CancelMode::kStop, "by user", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_EQ(job_.exit_code(), 130);
  EXPECT_EQ(job_.reason(), "cancelled: by user");
  EXPECT_EQ(Effects(), "");
  EXPECT_TRUE(job_.released());
}

TEST_F(JobMachineTest, CancelWhileFormingStopsAtOnce) {
  Start();
  Effects();
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_EQ(Effects(), "abort end_rendezvous stop ");
}

TEST_F(JobMachineTest, CancelWhileRunningStopsAtAStep) {
  Run();
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kRunning);
  EXPECT_TRUE(job_.cancelling());
  EXPECT_EQ(Effects(), "stop#1 ");
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);  // repeated
  EXPECT_EQ(Effects(), "");
  Step(5, 1);
  Done(0);
  Done(1);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_EQ(Effects(), "end_rendezvous stop ");
}

TEST_F(JobMachineTest, CancelThatComesTooLateLeavesTheJobCompleted) {
  Run();
  Step(10);
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  Done(0);
  Done(1);
  EXPECT_EQ(job_.state(), JobState::kCompleted);
  job_.Cancel(CancelMode::kKill, "", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kCompleted);
}

TEST_F(JobMachineTest, AStrongerCancelOvertakes) {
  Run();
  job_.Cancel(CancelMode::kCheckpointAndStop, "", now_, &effects_);
  EXPECT_EQ(Effects(), "checkpoint_and_stop#1 ");
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  EXPECT_EQ(Effects(), "");
  job_.Cancel(CancelMode::kKill, "", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_EQ(Effects(), "abort end_rendezvous stop ");
}

TEST_F(JobMachineTest, AStopThatIsNotObeyedKills) {
  Run();
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  Effects();
  Advance(options_.stop_limit);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_THAT(job_.reason(), HasSubstr("were killed"));
  EXPECT_EQ(Effects(), "abort end_rendezvous stop ");
}

TEST_F(JobMachineTest, AFailureOnTheWayToACancelIsStillCancelled) {
  Run();
  job_.Cancel(CancelMode::kStop, "", now_, &effects_);
  Signal(0, 11);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_THAT(job_.reason(), HasSubstr("signal 11"));
}

TEST_F(JobMachineTest, AFailureOnTheWayToTheLastCheckpointFails) {  // with max_restarts=0
  Run();
  Step(1);
  job_.Cancel(CancelMode::kCheckpointAndStop, "", now_, &effects_);
  Signal(0, 11);
  EXPECT_EQ(job_.state(), JobState::kFailed);
}

TEST_F(JobMachineTest, CancelWhileTheCauseIsSoughtKeepsTheCause) {
  Run();
  Report(0, FailedMessage{0, "all-reduce", true});
  job_.Cancel(CancelMode::kStop, "by user", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kRunning);
  Signal(1, 9);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_EQ(job_.cause()->signal, 9);
  EXPECT_THAT(job_.reason(), HasSubstr("cancelled: by user; on the way: rank 1"));
}

TEST_F(JobMachineTest, CancelWhileTheCauseIsSoughtHasALimit) {
  Run();
  Report(0, FailedMessage{0, "all-reduce", true});
  job_.Cancel(CancelMode::kStop, "by user", now_, &effects_);
  Advance(options_.symptom_window + absl::Seconds(1));
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_THAT(job_.reason(), HasSubstr("on the way: rank 0"));
}

TEST_F(JobMachineTest, KillWhileTheCauseIsSoughtSaysWhatWasKnown) {
  Run();
  Report(0, FailedMessage{0, "all-reduce", true});
  job_.Cancel(CancelMode::kKill, "", now_, &effects_);
  EXPECT_EQ(job_.state(), JobState::kCancelled);
  EXPECT_THAT(job_.reason(), HasSubstr("cancelled; on the way: rank 0"));
}

TEST_F(JobMachineTest, DirectivesNeedAJobThatTrains) {
  job_.Enqueue(now_);
  EXPECT_EQ(job_.Request({.kind = Directive::Kind::kEvaluate}, now_, &effects_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobMachineTest, AppliedDirectivesCountForTheNextEpoch) {
  Run();
  ASSERT_TRUE(
      job_.Request({.kind = Directive::Kind::kCheckpoint, .reason = "asked"}, now_, &effects_)
          .ok());
  EXPECT_EQ(Effects(), "checkpoint#1 ");
  EXPECT_EQ(job_.directives().applied(), 0);
  Step(3, 1);
  EXPECT_EQ(job_.directives().applied(), 1);
}

TEST_F(JobMachineTest, LateResultsAreKeptUntilTheTrainersAreGone) {
  Run();
  Signal(1, 9);
  Report(0, CheckpointMessage{.iteration = 5, .path = "/ckpt/5", .ok = true});
  EXPECT_EQ(job_.history().checkpoints().size(), 1u);
  EXPECT_EQ(job_.state(), JobState::kFailed);
  Exit(0, 1);
  Report(0, CheckpointMessage{.iteration = 6, .path = "/ckpt/6", .ok = true});
  EXPECT_EQ(job_.history().checkpoints().size(), 1u);
}

TEST_F(JobMachineTest, AFailedSaveIsAnEventAndTrainingGoesOn) {
  Run();
  Report(0, CheckpointMessage{.iteration = 5, .path = "/ckpt/5", .error = "disk full"});
  EXPECT_EQ(job_.state(), JobState::kRunning);
  EXPECT_TRUE(job_.history().checkpoints().empty());
  EXPECT_EQ(job_.history().events().newest().value.kind, "checkpoint_failed");
}

class JobWithoutFolderTest : public JobMachineTest {
 protected:
  JobWithoutFolderTest() : JobMachineTest({.save = ""}) {}
};

TEST_F(JobWithoutFolderTest, CheckpointIsRefusedAndCancelJustStops) {
  Run();
  const auto refused = job_.Request({.kind = Directive::Kind::kCheckpoint}, now_, &effects_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("checkpoint.save"));
  job_.Cancel(CancelMode::kCheckpointAndStop, "", now_, &effects_);
  EXPECT_EQ(Effects(), "stop#1 ");
}

}  // namespace
}  // namespace muster
