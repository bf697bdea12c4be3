// Steps under examination, through the whole core: held by all ranks, run again elsewhere, judged.

#include <map>

#include "absl/strings/str_cat.h"
#include "common/rerun/examination.h"
#include "common/rerun/rerun_json.h"
#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class CoordinatorRerunTest : public testing::Test {
 protected:
  // A job that trains, on one worker a node.
  void Train(int world_size, int nodes, int spares = 0) {
    for (int node = 1; node <= nodes; ++node) cluster_.Join(node);
    job_ = cluster_.Submit({.world_size = world_size, .spares = spares, .max_restarts = 3});
    cluster_.Advance(absl::Milliseconds(200));
    for (const ExtraSlot& extra : Job().extras())
      cluster_.ReportFrom(std::string(extra.slot.worker), PhaseMessage{.phase = "spare"});
    Begin();
    cluster_.Step(job_, 1);
  }
  void Begin() {
    cluster_.Report(job_, 0, PublishUniqueIdMessage{.id = "aa"});
    cluster_.Phase(job_, "training");
  }
  const JobMachine& Job() const { return cluster_.Job(job_); }
  std::string WorkerOf(int rank) const { return Job().ranks()[rank].worker; }

  // Every rank tells what it saw of iteration 2, then yields. A rank gives its worker's fault to an
  // all-reduce; rank 0 has rejected its result.
  void Hold(ExamineReport::Stage stage) {
    for (int rank = 0; rank < Job().world_size(); ++rank) {
      const uint64_t given = 10 + static_cast<uint64_t>(rank) + faults_[WorkerOf(rank)];
      ExamineReport report{.stage = stage, .iteration = 2};
      report.common_json = EncodeRerunCommon({.state = RerunState::kWillRerunFromCheckpoint});
      report.rank_json = absl::StrCat("{\"rank\":", rank, "}");
      report.run.fingerprints = {{0, "dp", "all_reduce", given, true}};
      if (rank == 0) {
        report.followed = true;
        report.finding = "found NaN in the local loss";
        report.result = static_cast<double>(given + data_fault_);
        report.rejected_again = report.result != 10;
        if (stage == ExamineReport::Stage::kInPlace) in_place_ = report.result;
        report.differs = report.result != in_place_;
      }
      cluster_.Report(job_, rank,
                      ExamineMessage{.iteration = 2, .json = EncodeExamineReport(report)});
    }
    cluster_.Phase(job_, "yielded");
  }
  ExamineOrder Ordered() const {
    const auto order = DecodeExamineOrder(Job().examine_json());
    EXPECT_TRUE(order.ok()) << order.status() << " " << Job().examine_json();
    return order.value_or(ExamineOrder{});
  }
  // The directive to leave.
  Directive Left() const {
    const std::vector<Directive> all = Job().directives().After(0);
    if (all.empty()) {
      ADD_FAILURE() << "no directive was given";
      return {};
    }
    EXPECT_EQ(all.back().kind, Directive::Kind::kCheckpointAndExit);
    EXPECT_EQ(all.back().iteration, 2);
    EXPECT_FALSE(Job().change().has_value());
    return all.back();
  }
  std::vector<std::string> EventKinds() const {
    std::vector<std::string> kinds;
    for (const auto& event : Job().history().events().entries()) kinds.push_back(event.value.kind);
    return kinds;
  }

  CoreCluster cluster_;
  std::string job_;
  std::map<std::string, uint64_t> faults_;
  uint64_t data_fault_ = 0;
  double in_place_ = 0;
};

TEST_F(CoordinatorRerunTest, TwoRanksAreExchangedAndTheFaultyWorkerIsQuarantined) {
  Train(2, 3);
  const std::string faulty = WorkerOf(0), other = WorkerOf(1);
  faults_[faulty] = 1000;
  Hold(ExamineReport::Stage::kInPlace);
  EXPECT_EQ(Job().epoch(), 2);
  EXPECT_EQ(WorkerOf(0), other);
  EXPECT_EQ(WorkerOf(1), faulty);
  EXPECT_EQ(Ordered().kind, ExamineOrder::Kind::kRerun);
  EXPECT_THAT(Ordered().rank_jsons, ElementsAre("{\"rank\":0}", "{\"rank\":1}"));
  Begin();
  EXPECT_EQ(Job().state(), JobState::kRerunning);
  Hold(ExamineReport::Stage::kElsewhere);
  EXPECT_EQ(Job().totals().rerun_verdicts.at("persistent"), 1);
  EXPECT_FALSE(cluster_.core().membership().FindWorker(faulty)->hold.quarantined.empty());
  ASSERT_TRUE(Job().cause().has_value());
  EXPECT_EQ(Job().cause()->kind, "rerun_persistent");
  // Its trainer is stopped, and recovery puts an idle worker in its place.
  cluster_.Advance(absl::Milliseconds(300));
  EXPECT_THAT((std::vector<std::string>{WorkerOf(0), WorkerOf(1)}), testing::Not(Contains(faulty)));
  EXPECT_THAT(EventKinds(), Contains("rerun_persistent"));
  EXPECT_TRUE(Job().examine_json().empty());
  Begin();
  cluster_.Step(job_, 2);
  EXPECT_EQ(Job().state(), JobState::kRunning);
}

TEST_F(CoordinatorRerunTest, ASpareTakesTheRankOfAWorldOfOne) {
  Train(1, 2, /*spares=*/1);
  const std::string faulty = WorkerOf(0);
  faults_[faulty] = 1000;
  Hold(ExamineReport::Stage::kInPlace);
  ASSERT_NE(WorkerOf(0), faulty);
  EXPECT_EQ(Ordered().kind, ExamineOrder::Kind::kRerun);
  Begin();
  Hold(ExamineReport::Stage::kElsewhere);
  EXPECT_EQ(Job().totals().rerun_verdicts.at("persistent"), 1);
  EXPECT_EQ(Ordered().kind, ExamineOrder::Kind::kRepeat);
  EXPECT_NE(WorkerOf(0), faulty);
  EXPECT_FALSE(cluster_.core().membership().FindWorker(faulty)->hold.quarantined.empty());
}

TEST_F(CoordinatorRerunTest, WithoutAnotherWorkerTheJobIsOrderedToLeaveWith16) {
  Train(1, 1);
  faults_[WorkerOf(0)] = 1000;
  Hold(ExamineReport::Stage::kInPlace);
  const Directive leave = Left();
  EXPECT_EQ(leave.exit_code, 16);
  EXPECT_THAT(leave.reason, HasSubstr("found NaN in the local loss"));
  EXPECT_EQ(cluster_.Sent<DirectiveBroadcast>(1).back().directive, leave);
  EXPECT_EQ(Job().epoch(), 1) << "all ranks hold the step: no other epoch is needed";
  EXPECT_EQ(Job().wait_phase(), WaitPhase::kSave) << "it is not waited for without end";
  cluster_.Phase(job_, "saving");
  EXPECT_EQ(Job().state(), JobState::kCheckpointing);
  cluster_.ReportAll(job_, DoneMessage{.exit_code = 16, .reason = leave.reason});
  EXPECT_EQ(Job().state(), JobState::kExited);
  EXPECT_EQ(Job().exit_code(), 16);
}

TEST_F(CoordinatorRerunTest, TheSameEverywhereEndsTheJobWith17) {
  Train(2, 2);
  data_fault_ = 500;
  Hold(ExamineReport::Stage::kInPlace);
  Begin();
  Hold(ExamineReport::Stage::kElsewhere);
  EXPECT_EQ(Job().totals().rerun_verdicts.at("correct"), 1);
  EXPECT_EQ(Left().exit_code, 17);
  EXPECT_EQ(Job().epoch(), 2);
}

// Between the directive and its exit a rank dies: recovery follows, and the directive stands for
// whoever holds that step again.
TEST_F(CoordinatorRerunTest, TheDirectiveToLeaveOutlivesADeathOnTheWayOut) {
  Train(2, 3);
  data_fault_ = 500;
  Hold(ExamineReport::Stage::kInPlace);
  Begin();
  Hold(ExamineReport::Stage::kElsewhere);
  const Directive leave = Left();
  cluster_.Report(job_, 1, ExitedReport{.signal = 9});
  cluster_.Advance(absl::Milliseconds(500));
  ASSERT_EQ(Job().epoch(), 3);
  // Whoever hears it only now can obey at once when it holds the step.
  for (const int node : {1, 2, 3}) {
    const auto sent = cluster_.Sent<DirectiveBroadcast>(node);
    if (sent.empty() || sent.back().epoch != 3) continue;
    EXPECT_EQ(sent.back().directive, leave);
  }
  Begin();
  Hold(ExamineReport::Stage::kInPlace);
  const Directive again = Left();
  EXPECT_EQ(again.number, leave.number + 1);
  EXPECT_EQ(again.iteration, leave.iteration);
  EXPECT_EQ(again.exit_code, leave.exit_code);
  EXPECT_EQ(Job().epoch(), 3) << "no second examination";
  EXPECT_EQ(Job().totals().rerun_verdicts.at("correct"), 1);
}

// A rank dies while the others hold the step: what they have said is not taken for a later hold.
TEST_F(CoordinatorRerunTest, ReportsOfAnEpochThatEndedAreDropped) {
  Train(2, 3);
  ExamineReport report{.iteration = 2, .finding = "found NaN", .followed = true};
  report.common_json = EncodeRerunCommon({.state = RerunState::kWillRerunFromCheckpoint});
  cluster_.Report(job_, 0, ExamineMessage{.iteration = 2, .json = EncodeExamineReport(report)});
  cluster_.Report(job_, 1, ExitedReport{.signal = 9});
  cluster_.Advance(absl::Milliseconds(500));
  ASSERT_EQ(Job().epoch(), 2);
  Begin();
  cluster_.Step(job_, 2);
  ASSERT_TRUE(cluster_.Handle(DrainWorker{.worker = WorkerOf(0)}).status.ok());
  const std::string drained = WorkerOf(0);
  cluster_.Advance(absl::Milliseconds(300));
  for (const ExtraSlot& extra : Job().extras())
    cluster_.ReportFrom(std::string(extra.slot.worker), PhaseMessage{.phase = "spare"});
  cluster_.Advance(absl::Milliseconds(300));
  cluster_.Phase(job_, "yielded");
  EXPECT_EQ(Job().epoch(), 3);
  EXPECT_NE(WorkerOf(0), drained);
  EXPECT_TRUE(Job().examine_json().empty());
}

TEST_F(CoordinatorRerunTest, ATransientErrorIsAnEventAndACount) {
  Train(2, 2);
  ExamineReport report{.stage = ExamineReport::Stage::kTransient,
                       .iteration = 2,
                       .finding = "found NaN",
                       .followed = true};
  cluster_.Report(job_, 1, ExamineMessage{.iteration = 2, .json = EncodeExamineReport(report)});
  EXPECT_EQ(Job().totals().rerun_verdicts.at("transient"), 1);
  EXPECT_EQ(Job().state(), JobState::kRunning);
  EXPECT_EQ(Job().epoch(), 1);
}

}  // namespace
}  // namespace muster
