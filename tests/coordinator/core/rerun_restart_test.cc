// A coordinator that is killed at any point of an examination: whoever takes up ends it with the
// same verdict, after as many epochs. The kill comes when an event is written, and what the event
// wanted to be sent is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rerun/examination.h"
#include "common/rerun/rerun_json.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/map_journal.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using testing::IsEmpty;

struct Scenario {
  const char* name;
  int world_size = 2, tensor_parallel = 1, nodes = 2, spares = 0;
  int faulty_rank = -1;       // whose worker at the beginning computes wrongly, wherever it is
  uint64_t data_fault = 0;    // the same on all workers
  bool transient = false;     // gone when it is run again in place
  bool dies_leaving = false;  // a rank, between the directive to leave and its exit
};

struct Ending {
  std::map<std::string, double> verdicts;
  std::set<std::string> quarantined;
  JobState state = JobState::kQueued;
  int exit_code = 0, num_directives = 0;
  int64_t epochs = 0, iteration = 0;
  bool operator==(const Ending&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Ending& ending) {
  for (const auto& [verdict, count] : ending.verdicts) out << verdict << " " << count << ", ";
  for (const std::string& worker : ending.quarantined) out << "quarantined " << worker << ", ";
  return out << JobStateName(ending.state) << " " << ending.exit_code << ", epoch " << ending.epochs
             << ", iteration " << ending.iteration << ", directives " << ending.num_directives;
}

// Plays agents and trainers of one job until it has ended or has gone through iteration 2.
class Examination {
 public:
  Examination(const Scenario& scenario, int kill_at) : scenario_(scenario), kill_at_(kill_at) {}

  Ending Run() {
    for (int node = 1; node <= scenario_.nodes; ++node) Join(node);
    const Outcome out =
        Handle(SubmitJob{.spec_json = TestSpec({.world_size = scenario_.world_size,
                                                .spares = scenario_.spares,
                                                .save = "/ckpt",
                                                .max_restarts = 5,
                                                .tensor_parallel = scenario_.tensor_parallel}),
                         .idempotency_key = "one"});
    job_ = std::get<SubmitReply>(out.reply).job_id;
    for (int round = 0; round < 200 && !Job().ended() && Job().iteration() < 2; ++round) Drive();
    Ending ending{.verdicts = Job().totals().rerun_verdicts,
                  .state = Job().state(),
                  .exit_code = Job().exit_code(),
                  .num_directives = static_cast<int>(Job().directives().last()),
                  .epochs = Job().epoch(),
                  .iteration = Job().iteration()};
    for (const auto& [name, worker] : core_->membership().workers()) {
      if (!worker.hold.quarantined.empty()) ending.quarantined.insert(name);
    }
    EXPECT_TRUE(NumReports() == 0) << NumReports() << " reports are still in the journal";
    return ending;
  }
  int num_events() const { return num_events_; }

 private:
  const JobMachine& Job() const { return *core_->FindJob(job_); }
  int NumReports() const {
    int reports = 0;
    for (const auto& [key, value] : journal_.records) {
      reports += absl::StartsWith(key, "job/1/rerun/") ? 1 : 0;
    }
    return reports;
  }

  // ---- the coordinator
  Outcome Handle(const Event& event) {
    Outcome out = core_->Handle(event, now_);
    Take(out.actions);
    return out;
  }
  void Tick() {
    now_ += absl::Milliseconds(100);
    for (int node = 1; node <= scenario_.nodes; ++node) {
      core_->Handle(Heartbeat{.stream = static_cast<StreamId>(node)}, now_);
    }
    Take(core_->Tick(now_));
  }
  void Take(const std::vector<Action>& actions) {
    EXPECT_THAT(checker_.Check(*core_), IsEmpty());
    journal_.Write(core_->TakeChanges());
    EXPECT_EQ(journal_.Load().records, core_->SaveAll().records);
    if (++num_events_ == kill_at_) return Restart();
    for (const Action& action : actions) {
      const auto* send = std::get_if<SendToAgent>(&action);
      if (send == nullptr) continue;
      if (const auto* stop = std::get_if<StopTrainerMessage>(&send->message))
        ReportOf(stop->worker, ExitedReport{.signal = 15});
    }
  }
  void Restart() {
    core_ = std::make_unique<Coordinator>(CoordinatorOptions{});
    const absl::Status status = core_->Restore(journal_.Load(), now_);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(core_->SaveAll().records, journal_.Load().records);
    for (int node = 1; node <= scenario_.nodes; ++node) {
      if (core_->membership().FindAgent(absl::StrCat("incarnation-", node)) != nullptr)
        Handle(OpenStream{absl::StrCat("incarnation-", node), static_cast<StreamId>(node)});
    }
    Tick();
  }

  // ---- agents and trainers
  void Join(int node) {
    RegisterAgent agent{.incarnation = absl::StrCat("incarnation-", node),
                        .node = absl::StrCat("n", node),
                        .address = absl::StrCat("10.0.0.", node),
                        .num_cpus = 1,
                        .workers = {{absl::StrCat("n", node, "/0"), "cpu", DeviceKind::kCpu, 0}}};
    ASSERT_TRUE(Handle(agent).status.ok());
    ASSERT_TRUE(Handle(OpenStream{agent.incarnation, static_cast<StreamId>(node)}).status.ok());
  }
  // Of whatever assignment the worker has.
  void ReportOf(const std::string& worker, const ReportBody& body) {
    const Worker* found = core_->membership().FindWorker(worker);
    if (found == nullptr || !found->assignment.has_value()) return;
    const StreamId stream = core_->membership().FindAgent(found->incarnation)->stream;
    if (stream == 0) return;
    const AssignmentRef from = *found->assignment;
    Handle(ReportBatch{stream, ++sequence_[stream], {{from, body}}});
  }
  void Say(int rank, const ReportBody& body) {
    if (rank < Job().world_size()) ReportOf(std::string(Job().ranks()[rank].worker), body);
  }
  void SayAll(const ReportBody& body) {
    for (int rank = 0; rank < scenario_.world_size; ++rank) Say(rank, body);
  }

  void Drive() {
    const int64_t epoch = Job().epoch();
    if (epoch == 0 || Job().aborted()) return Tick();
    if (epoch != formed_) {
      formed_ = epoch;
      const std::vector<ExtraSlot> extras = Job().extras();
      for (const ExtraSlot& extra : extras) {
        if (extra.role == ExtraSlot::Role::kSpare)
          ReportOf(extra.slot.worker, PhaseMessage{.phase = "spare"});
        if (extra.role == ExtraSlot::Role::kHelper)
          ReportOf(extra.slot.worker, DoneMessage{.reason = "gave its state away"});
      }
      Say(0, PublishUniqueIdMessage{.id = "aa"});
      SayAll(PhaseMessage{.phase = "training"});
      return;
    }
    if (faulty_.empty() && scenario_.faulty_rank >= 0)
      faulty_ = Job().ranks()[scenario_.faulty_rank].worker;
    if (Job().iteration() == 0) return Step(1);
    if (Job().ranks()[0].phase == "yielded") return Leave();
    const bool ordered = OrdersRerun(Job().examine_json());
    if (IsGood() && !ordered) return Step(2);
    if (scenario_.transient) {
      Tell(ExamineReport::Stage::kTransient);
      return Step(2);
    }
    Tell(ordered ? ExamineReport::Stage::kElsewhere : ExamineReport::Stage::kInPlace);
    SayAll(PhaseMessage{.phase = "yielded"});
    if (Job().epoch() == epoch) Tick();
  }
  void Step(int64_t iteration) {
    StepMessage step;
    step.iteration = iteration;
    Say(Job().world_size() - 1, step);
  }
  void Leave() {
    std::optional<Directive> leave;
    for (const Directive& directive : Job().directives().After(0)) {
      if (directive.kind == Directive::Kind::kCheckpointAndExit) leave = directive;
    }
    if (!leave.has_value()) return Tick();
    EXPECT_EQ(leave->iteration, 2);
    if (scenario_.dies_leaving && !has_died_) {
      has_died_ = true;
      return Say(1, ExitedReport{.signal = 9});
    }
    SayAll(PhaseMessage{.phase = "saving"});
    SayAll(DoneMessage{.exit_code = leave->exit_code, .reason = leave->reason});
  }

  // ---- what is computed: the ranks of a replica reduce what each has
  uint64_t Given(int rank) const {
    return 10 + static_cast<uint64_t>(rank) + (Job().ranks()[rank].worker == faulty_ ? 1000 : 0);
  }
  uint64_t Result() const {
    uint64_t sum = scenario_.data_fault;
    for (int rank = 0; rank < scenario_.tensor_parallel; ++rank) sum += Given(rank);
    return sum;
  }
  bool IsGood() const {
    uint64_t right = 0;
    for (int rank = 0; rank < scenario_.tensor_parallel; ++rank)
      right += 10 + static_cast<uint64_t>(rank);
    return Result() == right;
  }
  void Tell(ExamineReport::Stage stage) {
    if (stage == ExamineReport::Stage::kInPlace) in_place_ = Result();
    for (int rank = 0; rank < scenario_.world_size; ++rank) {
      ExamineReport report{.stage = stage, .iteration = 2};
      report.common_json = EncodeRerunCommon({.state = RerunState::kWillRerunFromCheckpoint});
      report.rank_json = absl::StrCat("{\"rank\":", rank, "}");
      report.run.serial = absl::StrCat("device of ", Job().ranks()[rank].worker);
      report.run.fingerprints = {{0, "tp", "all_reduce", Given(rank), true}};
      if (rank == 0) {
        report.followed = true;
        report.finding = "found NaN in the local loss";
        report.result = static_cast<double>(Result());
        report.rejected_again = !IsGood();
        report.differs = Result() != in_place_;
      }
      Say(rank, ExamineMessage{.iteration = 2, .json = EncodeExamineReport(report)});
    }
  }

  const Scenario scenario_;
  const int kill_at_;
  int num_events_ = 0;
  std::unique_ptr<Coordinator> core_ = std::make_unique<Coordinator>(CoordinatorOptions{});
  InvariantChecker checker_;
  MapJournal journal_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<StreamId, int64_t> sequence_;
  std::string job_, faulty_;
  int64_t formed_ = 0;  // the epoch whose trainers have begun
  uint64_t in_place_ = 0;
  bool has_died_ = false;
};

class RerunRestartTest : public testing::TestWithParam<Scenario> {};

TEST_P(RerunRestartTest, EndsAlikeWhereverTheCoordinatorIsKilled) {
  Examination undisturbed(GetParam(), /*kill_at=*/0);
  const Ending expected = undisturbed.Run();
  RecordProperty("ending", testing::PrintToString(expected));
  EXPECT_FALSE(expected.verdicts.empty() && expected.exit_code == 0) << expected;
  for (int kill_at = 1; kill_at <= undisturbed.num_events(); ++kill_at) {
    SCOPED_TRACE(absl::StrCat("killed after event ", kill_at));
    ASSERT_EQ(Examination(GetParam(), kill_at).Run(), expected);
  }
}

TEST_P(RerunRestartTest, TheVerdictIsTheRightOne) {
  const Scenario& scenario = GetParam();
  const Ending ending = Examination(scenario, 0).Run();
  const std::string name = scenario.name;
  if (name.starts_with("Persistent")) {
    EXPECT_EQ(ending.verdicts, (std::map<std::string, double>{{"persistent", 1}})) << ending;
    EXPECT_EQ(ending.quarantined.size(), 1u);
    EXPECT_EQ(ending.iteration, 2);
  } else if (name.starts_with("Correct")) {
    EXPECT_EQ(ending.verdicts, (std::map<std::string, double>{{"correct", 1}})) << ending;
    EXPECT_EQ(ending.exit_code, 17);
  } else if (name.starts_with("Unattributed")) {
    EXPECT_EQ(ending.verdicts, (std::map<std::string, double>{{"unattributed", 4}})) << ending;
    EXPECT_EQ(ending.exit_code, 17);
  } else if (name.starts_with("Transient")) {
    EXPECT_EQ(ending.verdicts, (std::map<std::string, double>{{"transient", 1}})) << ending;
    EXPECT_EQ(ending.iteration, 2);
  } else {
    EXPECT_EQ(ending.exit_code, 16) << ending;
  }
  // A job that leaves does so by one directive; after a death on the way out by a second one.
  EXPECT_EQ(ending.num_directives, ending.exit_code == 0 ? 0 : scenario.dies_leaving ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, RerunRestartTest,
    testing::Values(Scenario{.name = "PersistentExchanged", .nodes = 3, .faulty_rank = 0},
                    Scenario{.name = "PersistentSpareTwoRuns",
                             .tensor_parallel = 2,
                             .nodes = 3,
                             .spares = 1,
                             .faulty_rank = 0},
                    Scenario{.name = "PersistentWithinAReplica",
                             .world_size = 4,
                             .tensor_parallel = 2,
                             .nodes = 5,
                             .faulty_rank = 1},
                    Scenario{.name = "Correct", .data_fault = 500},
                    Scenario{.name = "Unattributed", .tensor_parallel = 2, .faulty_rank = 1},
                    Scenario{.name = "Transient", .data_fault = 500, .transient = true},
                    Scenario{
                        .name = "NoOtherWorker", .world_size = 1, .nodes = 1, .data_fault = 500},
                    Scenario{.name = "CorrectAndARankDiesLeaving",
                             .nodes = 3,
                             .data_fault = 500,
                             .dies_leaving = true}),
    [](const auto& scenario) { return std::string(scenario.param.name); });

}  // namespace
}  // namespace muster
