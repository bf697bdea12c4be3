#include "coordinator/core/rerun_machine.h"

#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/rerun/rerun_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A world in which each worker adds its fault to all that it computes: a pipeline of `stages` ranks
// a replica, whose ranks pass a value on; the last one is the observer, and the first replica's is
// the one that rejects. Then the stages of all replicas reduce.
class World {
 public:
  World(int stages, int replicas) : stages_(stages), size_(stages * replicas) {
    for (int rank = 0; rank < size_; ++rank) {
      places_.workers.push_back(absl::StrCat("w", rank));
      places_.replicas.push_back(rank / stages);
    }
  }

  void Move(const std::vector<RankMove>& moves) {
    const std::vector<std::string> before = places_.workers;
    for (const RankMove& move : moves) {
      EXPECT_EQ(before[move.rank], move.from);
      places_.workers[move.rank] = move.to;
    }
    const std::set<std::string> once(places_.workers.begin(), places_.workers.end());
    EXPECT_EQ(once.size(), places_.workers.size()) << "one worker a rank";
    // A spare that is used is none any more, and whose place it took leaves.
    std::erase_if(places_.spares, [&](const std::string& name) { return once.count(name) > 0; });
  }

  // Every rank reports the run of these places. The observer is `observer`.
  void Report(RerunArbiter& arbiter, ExamineReport::Stage stage, int observer) {
    std::vector<int64_t> sent(size_);
    for (int rank = 0; rank < size_; ++rank) {
      const bool first = rank % stages_ == 0;
      sent[rank] =
          (first ? 10 * (rank / stages_ + 1) : sent[rank - 1] + 1) + faults[places_.workers[rank]];
    }
    for (int rank = 0; rank < size_; ++rank) {
      const bool first = rank % stages_ == 0, last = rank % stages_ == stages_ - 1;
      ExamineReport report{.stage = stage, .iteration = 7};
      RerunCommonState common{.state = stage == ExamineReport::Stage::kInPlace
                                           ? RerunState::kWillRerunFromCheckpoint
                                           : RerunState::kRerunningFromCheckpoint};
      report.common_json = EncodeRerunCommon(common);
      report.rank_json = absl::StrCat("state of rank ", rank);
      auto& prints = report.run.fingerprints;
      report.run.serial = absl::StrCat("serial of ", places_.workers[rank]);
      if (!first) prints.push_back({0, "pp", absl::StrCat("send ", rank - 1, ">", rank), 0, false});
      if (!last)
        prints.push_back({0, "pp", absl::StrCat("send ", rank, ">", rank + 1),
                          static_cast<uint64_t>(sent[rank]), true});
      prints.push_back({0, absl::StrCat("dp of stage ", rank % stages_), "all_reduce",
                        static_cast<uint64_t>(sent[rank] * 3), true});
      if (rank == observer) {
        const int64_t good = 10 * (rank / stages_ + 1) + (stages_ - 1) * (last ? 1 : 0);
        report.followed = true;
        report.finding = "loss too large";
        report.result = static_cast<double>(sent[rank] + data_fault);
        report.rejected_again = report.result != static_cast<double>(good);
        if (stage == ExamineReport::Stage::kInPlace) in_place_ = report.result;
        report.initial_result = in_place_;
        report.differs = report.result != in_place_;
      }
      const auto outcome =
          arbiter.OnReport(rank, places_.workers[rank], EncodeExamineReport(report));
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(outcome->has_value());
    }
  }

  RerunRuling Examine(RerunArbiter& arbiter, int observer) {
    Report(arbiter, ExamineReport::Stage::kInPlace, observer);
    RerunRuling ruling = arbiter.Rule(places_);
    EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kRerun);
    for (int runs = 0; ruling.order.kind == ExamineOrder::Kind::kRerun && runs < 10; ++runs) {
      EXPECT_EQ(ruling.order.rank_jsons.size(), places_.workers.size());
      Move(ruling.moves);
      Report(arbiter, ExamineReport::Stage::kElsewhere, observer);
      ruling = arbiter.Rule(places_);
    }
    return ruling;
  }

  std::map<std::string, int64_t> faults;  // by worker
  int64_t data_fault = 0;
  RerunArbiter::Places places_;

 private:
  const int stages_, size_;
  double in_place_ = 0;
};

// Whatever the layout, whichever worker is at fault: it is named, with or without a spare.
TEST(RerunArbiterTest, TheWorkerThatComputesWronglyIsNamed) {
  for (const auto& [stages, replicas] :
       {std::pair(1, 2), std::pair(2, 1), std::pair(3, 1), std::pair(4, 2), std::pair(1, 1)}) {
    for (const bool spare : {false, true}) {
      if (stages * replicas == 1 && !spare) continue;
      for (int faulty = 0; faulty < stages; ++faulty) {
        SCOPED_TRACE(absl::StrCat(stages, " stages, ", replicas, " replicas, w", faulty,
                                  spare ? ", a spare" : ""));
        World world(stages, replicas);
        if (spare) world.places_.spares = {"s"};
        world.faults[absl::StrCat("w", faulty)] = 1000;
        RerunArbiter arbiter(false);
        const RerunRuling ruling = world.Examine(arbiter, stages - 1);
        ASSERT_TRUE(ruling.outcome.has_value());
        // Two workers that change places, with a fault that goes along: either explains it.
        const bool ambiguous = stages == 2 && replicas == 1 && !spare;
        if (ambiguous) {
          EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kUnattributed);
          EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kRepeat);
          continue;
        }
        EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kPersistent) << ruling.outcome->text;
        EXPECT_EQ(ruling.outcome->worker, absl::StrCat("w", faulty));
        EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kRepeat);
        EXPECT_THAT(ruling.outcome->text,
                    AllOf(HasSubstr("iteration 7: loss too large"), HasSubstr("with equal inputs"),
                          HasSubstr(absl::StrCat("serial of w", faulty))));
        EXPECT_EQ(arbiter.state(), RerunArbiter::State::kIdle);
      }
    }
  }
}

TEST(RerunArbiterTest, AGuiltyWorkerThatHoldsARankMustNotGoOn) {
  World world(3, 1);
  world.faults["w1"] = 1000;
  RerunArbiter arbiter(false);
  const RerunRuling without = world.Examine(arbiter, 2);
  ASSERT_TRUE(without.condemned.has_value());
  EXPECT_EQ(world.places_.workers[static_cast<size_t>(*without.condemned)], "w1");
  // With a second spare its rank moves there.
  World roomy(3, 1);
  roomy.faults["w1"] = 1000;
  roomy.places_.spares = {"s", "t", "u", "v"};
  RerunArbiter again(false);
  const RerunRuling with = roomy.Examine(again, 2);
  EXPECT_FALSE(with.condemned.has_value());
  roomy.Move(with.moves);
  EXPECT_THAT(roomy.places_.workers, testing::Not(testing::Contains("w1")));
}

TEST(RerunArbiterTest, EqualEverywhereBlamesDataOrModelAndTheSpecSaysWhatFollows) {
  for (const bool go_on : {false, true}) {
    World world(2, 2);
    world.data_fault = 500;
    RerunArbiter arbiter(go_on);
    const RerunRuling ruling = world.Examine(arbiter, 1);
    ASSERT_TRUE(ruling.outcome.has_value());
    EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kCorrect);
    EXPECT_EQ(ruling.order.kind, go_on ? ExamineOrder::Kind::kAccept : ExamineOrder::Kind::kLeave);
    EXPECT_EQ(ruling.order.iteration, 7);
    if (!go_on) {
      EXPECT_EQ(ruling.order.exit_code, 17);
    }
  }
}

TEST(RerunArbiterTest, WithoutAnotherDeviceTheJobLeavesWith16) {
  World world(1, 1);
  RerunArbiter arbiter(false);
  world.Report(arbiter, ExamineReport::Stage::kInPlace, 0);
  const RerunRuling ruling = arbiter.Rule(world.places_);
  EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kLeave);
  EXPECT_EQ(ruling.order.exit_code, 16);
  EXPECT_THAT(ruling.order.rank_jsons, ElementsAre("state of rank 0"));
  EXPECT_THAT(ruling.moves, IsEmpty());
  EXPECT_FALSE(ruling.outcome.has_value());
}

// An examination that a checkpoint has brought along: only the results can be compared.
TEST(RerunArbiterTest, ARunThatContinuesACheckpointsExaminationEndsAsMegatronsDoes) {
  World world(2, 1);
  RerunArbiter arbiter(false);
  world.Report(arbiter, ExamineReport::Stage::kElsewhere, 1);
  const RerunRuling ruling = arbiter.Rule(world.places_);
  EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kLeave);
  EXPECT_EQ(ruling.order.exit_code, 17);
}

TEST(RerunArbiterTest, AStepIsNotExaminedForever) {
  World world(2, 1);
  world.faults["w0"] = 1000;
  RerunArbiter arbiter(false);
  int rulings = 0;
  RerunRuling ruling;
  do {
    ruling = world.Examine(arbiter, 1);
    ++rulings;
  } while (ruling.order.kind == ExamineOrder::Kind::kRepeat && rulings < 20);
  EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kLeave);
  EXPECT_EQ(ruling.order.exit_code, 17);
  EXPECT_EQ(rulings, 4);
}

TEST(RerunArbiterTest, ATransientErrorIsNotedOnceAStep) {
  RerunArbiter arbiter(false);
  ExamineReport report{.stage = ExamineReport::Stage::kTransient,
                       .iteration = 9,
                       .finding = "found NaN",
                       .followed = true,
                       .initial_result = std::nan(""),
                       .result = 2.5};
  const auto outcome = arbiter.OnReport(3, "w3", EncodeExamineReport(report));
  ASSERT_TRUE(outcome.ok() && outcome->has_value());
  EXPECT_EQ((*outcome)->verdict, RerunVerdict::kTransient);
  EXPECT_THAT((*outcome)->text, AllOf(HasSubstr("iteration 9: found NaN on w3"),
                                      HasSubstr("run again in place it was 2.5")));
  EXPECT_FALSE(arbiter.OnReport(4, "w4", EncodeExamineReport(report))->has_value());
  EXPECT_FALSE(arbiter.holds());
}

TEST(RerunArbiterTest, IncompleteReportsLetTheStepBeginAnew) {
  World world(2, 1);
  RerunArbiter arbiter(false);
  ExamineReport report{.iteration = 7, .common_json = "{}", .rank_json = "{}"};
  ASSERT_TRUE(arbiter.OnReport(0, "w0", EncodeExamineReport(report)).ok());
  EXPECT_EQ(arbiter.Rule(world.places_).order.kind, ExamineOrder::Kind::kRepeat);
  EXPECT_FALSE(arbiter.OnReport(0, "w0", "{").ok());
}

}  // namespace
}  // namespace muster
