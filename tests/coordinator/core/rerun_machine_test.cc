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
using testing::HasSubstr;
using testing::IsEmpty;

// A world in which a worker adds its fault to all that it computes. Each replica is a pipeline of
// `stages` stages of `width` tensor-parallel ranks: they reduce what they computed, pass it on, and
// get a gradient back; then equal ranks of all replicas reduce. Rank = (replica * stages + stage) *
// width + place.
struct Layout {
  int width = 1, stages = 1, replicas = 1;
  int size() const { return width * stages * replicas; }
  int ranks_of_replica() const { return width * stages; }
};

class World {
 public:
  explicit World(const Layout& layout) : layout_(layout) {
    for (int rank = 0; rank < layout.size(); ++rank) {
      places_.workers.push_back(absl::StrCat("w", rank));
      places_.replicas.push_back(rank / layout.ranks_of_replica());
    }
  }

  void Move(const std::vector<RankMove>& moves) {
    const std::vector<std::string> before = places_.workers;
    for (const RankMove& move : moves) {
      EXPECT_EQ(before[move.rank], move.from);
      EXPECT_NE(move.from, move.to);
      places_.workers[move.rank] = move.to;
    }
    const std::set<std::string> once(places_.workers.begin(), places_.workers.end());
    EXPECT_EQ(once.size(), places_.workers.size()) << "one worker a rank";
    // A spare that is used is none any more, and whose place it took leaves.
    std::erase_if(places_.spares, [&](const std::string& name) { return once.count(name) > 0; });
  }

  // Every rank reports the run of these places. The observer is `observer`.
  void Report(RerunArbiter& arbiter, ExamineReport::Stage stage, int observer) {
    const std::vector<ExamineReport> reports = Run(stage, observer);
    for (int rank = 0; rank < layout_.size(); ++rank) {
      const auto outcome =
          arbiter.OnReport(rank, places_.workers[rank], EncodeExamineReport(reports[rank]));
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_FALSE(outcome->has_value());
    }
  }

  RerunRuling Examine(RerunArbiter& arbiter, int observer) {
    num_moved.clear();
    Report(arbiter, ExamineReport::Stage::kInPlace, observer);
    RerunRuling ruling = arbiter.Rule(places_);
    EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kRerun);
    while (ruling.order.kind == ExamineOrder::Kind::kRerun && num_moved.size() < 10) {
      EXPECT_EQ(ruling.order.rank_jsons.size(), places_.workers.size());
      num_moved.push_back(ruling.moves.size());
      Move(ruling.moves);
      Report(arbiter, ExamineReport::Stage::kElsewhere, observer);
      ruling = arbiter.Rule(places_);
    }
    return ruling;
  }

  std::map<std::string, int64_t> faults;  // by worker
  int64_t data_fault = 0;
  // A fault that shows only in the work of this rank; -1: in that of all.
  int only_at = -1;
  RerunArbiter::Places places_;
  std::vector<size_t> num_moved;  // ranks, by run elsewhere of the last examination

 private:
  int64_t FaultOf(int rank) const {
    if (only_at >= 0 && rank != only_at) return 0;
    const auto fault = faults.find(places_.workers[rank]);
    return fault == faults.end() ? 0 : fault->second;
  }

  std::vector<ExamineReport> Run(ExamineReport::Stage stage, int observer) {
    const int width = layout_.width, stages = layout_.stages;
    std::vector<ExamineReport> reports(layout_.size());
    std::vector<int64_t> results(layout_.size()), good(layout_.size());
    const auto give = [&](int rank, const std::string& group, const std::string& op, int64_t value,
                          bool gives = true) {
      reports[rank].run.fingerprints.push_back(
          {0, group, op, static_cast<uint64_t>(gives ? value : 0), gives});
    };
    for (int replica = 0; replica < layout_.replicas; ++replica) {
      const int first = replica * layout_.ranks_of_replica();
      int64_t value = 10 * (replica + 1), right = value;
      for (const bool forward : {true, false}) {
        for (int i = 0; i < stages; ++i) {
          const int s = forward ? i : stages - 1 - i;
          int64_t sum = 0, right_sum = 0;
          const std::string tp = absl::StrCat("tp of ", replica, " ", s);
          for (int t = 0; t < width; ++t) {
            const int rank = first + s * width + t;
            const int64_t mine = value * (t + 2) + s + 1 + FaultOf(rank);
            if (width > 1) give(rank, tp, forward ? "forward" : "backward", mine);
            sum += mine;
            right_sum += right * (t + 2) + s + 1;
          }
          const int next = forward ? s + 1 : s - 1;
          for (int t = 0; t < width; ++t) {
            const int rank = first + s * width + t;
            results[rank] += sum;
            good[rank] += right_sum;
            if (next < 0 || next >= stages) continue;
            const std::string op = absl::StrCat("send ", s, ">", next);
            const std::string pp = absl::StrCat("pp of ", replica, " ", t);
            give(rank, pp, op, sum);
            give(first + next * width + t, pp, op, 0, false);
          }
          value = sum;
          right = right_sum;
        }
      }
    }
    for (int rank = 0; rank < layout_.size(); ++rank) {
      ExamineReport& report = reports[rank];
      give(rank, absl::StrCat("dp of ", rank % layout_.ranks_of_replica()), "all_reduce",
           results[rank]);
      report.stage = stage;
      report.iteration = 7;
      RerunCommonState common{.state = stage == ExamineReport::Stage::kInPlace
                                           ? RerunState::kWillRerunFromCheckpoint
                                           : RerunState::kRerunningFromCheckpoint};
      report.common_json = EncodeRerunCommon(common);
      report.rank_json = absl::StrCat("state of rank ", rank);
      report.run.serial = absl::StrCat("serial of ", places_.workers[rank]);
      report.run.fingerprints.push_back(
          {0, "world", kResultOp, static_cast<uint64_t>(results[rank]), true});
      if (rank != observer) continue;
      report.followed = true;
      report.finding = "loss too large";
      report.result = static_cast<double>(results[rank] + data_fault);
      report.rejected_again = report.result != static_cast<double>(good[rank]);
      if (stage == ExamineReport::Stage::kInPlace) in_place_ = report.result;
      report.initial_result = in_place_;
      report.differs = report.result != in_place_;
    }
    return reports;
  }

  const Layout layout_;
  double in_place_ = 0;
};

std::vector<Layout> LayoutsUpTo(int most) {
  std::vector<Layout> layouts;
  for (int width = 1; width <= most; ++width) {
    for (int stages = 1; width * stages <= most; ++stages) {
      for (int replicas = 1; width * stages * replicas <= most; ++replicas)
        layouts.push_back({width, stages, replicas});
    }
  }
  return layouts;
}

// Every layout of up to eight workers, with up to two spares, the faulty worker and the rank that
// sees its result at every place, a fault that goes along or shows at that rank only: the worker is
// named, no other ever is, and no more ranks move than must.
TEST(RerunArbiterTest, TheWorkerThatComputesWronglyIsNamed) {
  int cases = 0;
  for (const Layout& layout : LayoutsUpTo(8)) {
    const int in_replica = layout.ranks_of_replica();
    for (const int spares : {0, 1, 2}) {
      if (layout.size() + spares < 2) continue;
      for (int faulty = 0; faulty < layout.size(); ++faulty) {
        for (const bool everywhere : {true, false}) {
          const int first = faulty / in_replica * in_replica;
          for (int observer = first; observer < first + in_replica; ++observer) {
            SCOPED_TRACE(absl::StrCat("tp ", layout.width, ", pp ", layout.stages, ", dp ",
                                      layout.replicas, ", w", faulty, " seen by rank ", observer,
                                      everywhere ? "" : " (there only), ", spares, " spares"));
            World world(layout);
            for (int i = 0; i < spares; ++i) world.places_.spares.push_back(absl::StrCat("s", i));
            const std::string guilty = absl::StrCat("w", faulty);
            world.faults[guilty] = 1000;
            if (!everywhere) world.only_at = faulty;
            RerunArbiter arbiter(false);
            const RerunRuling ruling = world.Examine(arbiter, observer);
            ++cases;
            ASSERT_TRUE(ruling.outcome.has_value());
            EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kRepeat);
            EXPECT_EQ(arbiter.state(), RerunArbiter::State::kIdle);
            EXPECT_LE(world.num_moved.size(), 2u) << "runs elsewhere";
            if (world.num_moved.size() == 2) {
              EXPECT_LE(world.num_moved[1], 2u) << "two are enough to tell";
            }
            if (in_replica == 1) {
              EXPECT_EQ(world.num_moved, (std::vector<size_t>{spares > 0 ? 1u : 2u}));
            }
            // Two workers alone that change places: either explains a fault that goes along.
            const bool ambiguous = in_replica == 2 && layout.replicas == 1 && spares == 0;
            if (ambiguous && everywhere) {
              EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kUnattributed);
              EXPECT_THAT(ruling.outcome->text, HasSubstr("one of w0, w1"));
              continue;
            }
            EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kPersistent) << ruling.outcome->text;
            EXPECT_EQ(ruling.outcome->worker, guilty);
            EXPECT_THAT(
                ruling.outcome->text,
                AllOf(HasSubstr("iteration 7: loss too large"), HasSubstr("with equal inputs"),
                      HasSubstr(absl::StrCat("serial of ", guilty)),
                      HasSubstr(absl::StrCat("worker ", guilty, " computes wrongly"))));
          }
        }
      }
    }
  }
  EXPECT_GT(cases, 1000);
}

// Of two workers alone the one whose device has failed its check is it.
TEST(RerunArbiterTest, AFailedCheckOfADeviceDecidesBetweenTwo) {
  World world({.stages = 2});
  world.faults["w1"] = 1000;
  world.places_.failed = {"w1"};
  RerunArbiter arbiter(false);
  const RerunRuling ruling = world.Examine(arbiter, 1);
  EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kPersistent);
  EXPECT_EQ(ruling.outcome->worker, "w1");
}

// The third worker agrees with neither of the two that are suspected: nobody is blamed.
TEST(RerunArbiterTest, ThreeWorkersWithThreeResultsLeaveNobodyToBlame) {
  World world({.stages = 3});
  world.faults = {{"w0", 1000}, {"w2", 7}};
  RerunArbiter arbiter(false);
  const RerunRuling ruling = world.Examine(arbiter, 2);
  ASSERT_TRUE(ruling.outcome.has_value());
  EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kUnattributed) << ruling.outcome->text;
}

TEST(RerunArbiterTest, AGuiltyWorkerThatHoldsARankMustNotGoOn) {
  World world({.stages = 3});
  world.faults["w1"] = 1000;
  RerunArbiter arbiter(false);
  const RerunRuling without = world.Examine(arbiter, 2);
  ASSERT_TRUE(without.condemned.has_value());
  EXPECT_EQ(world.places_.workers[static_cast<size_t>(*without.condemned)], "w1");
  // With a second spare its rank moves there.
  World roomy({.stages = 3});
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
    World world({.stages = 2, .replicas = 2});
    world.data_fault = 500;
    RerunArbiter arbiter(go_on);
    const RerunRuling ruling = world.Examine(arbiter, 1);
    ASSERT_TRUE(ruling.outcome.has_value());
    EXPECT_EQ(ruling.outcome->verdict, RerunVerdict::kCorrect);
    EXPECT_EQ(ruling.leave.has_value(), !go_on);
    if (go_on) {
      EXPECT_EQ(ruling.order.kind, ExamineOrder::Kind::kAccept);
      EXPECT_EQ(ruling.order.iteration, 7);
    } else {
      EXPECT_EQ(ruling.leave->exit_code, 17);
      EXPECT_EQ(ruling.leave->iteration, 7);
    }
  }
}

TEST(RerunArbiterTest, WithoutAnotherDeviceTheJobLeavesWith16) {
  World world({});
  RerunArbiter arbiter(false);
  world.Report(arbiter, ExamineReport::Stage::kInPlace, 0);
  const RerunRuling ruling = arbiter.Rule(world.places_);
  ASSERT_TRUE(ruling.leave.has_value());
  EXPECT_EQ(ruling.leave->exit_code, 16);
  EXPECT_EQ(ruling.leave->iteration, 7);
  EXPECT_THAT(ruling.moves, IsEmpty());
  EXPECT_FALSE(ruling.outcome.has_value());
  // Should the step be held again, as a rank has died on the way out: it stands.
  world.places_.spares = {"s"};
  arbiter.SetEpoch(5);
  world.Report(arbiter, ExamineReport::Stage::kInPlace, 0);
  const RerunRuling again = arbiter.Rule(world.places_);
  ASSERT_TRUE(again.leave.has_value());
  EXPECT_EQ(again.leave->exit_code, 16);
  EXPECT_EQ(again.leave->reason, ruling.leave->reason);
}

// An examination that a checkpoint has brought along: only the results can be compared.
TEST(RerunArbiterTest, ARunThatContinuesACheckpointsExaminationEndsAsMegatronsDoes) {
  World world({.stages = 2});
  RerunArbiter arbiter(false);
  world.Report(arbiter, ExamineReport::Stage::kElsewhere, 1);
  const RerunRuling ruling = arbiter.Rule(world.places_);
  ASSERT_TRUE(ruling.leave.has_value());
  EXPECT_EQ(ruling.leave->exit_code, 17);
}

TEST(RerunArbiterTest, AStepIsNotExaminedForever) {
  World world({.stages = 2});
  world.faults["w0"] = 1000;
  RerunArbiter arbiter(false);
  int rulings = 0;
  RerunRuling ruling;
  do {
    ruling = world.Examine(arbiter, 1);
    ++rulings;
  } while (!ruling.leave.has_value() && rulings < 20);
  ASSERT_TRUE(ruling.leave.has_value());
  EXPECT_EQ(ruling.leave->exit_code, 17);
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
  World world({.stages = 2});
  RerunArbiter arbiter(false);
  ExamineReport report{.iteration = 7, .common_json = "{}", .rank_json = "{}"};
  ASSERT_TRUE(arbiter.OnReport(0, "w0", EncodeExamineReport(report)).ok());
  EXPECT_EQ(arbiter.Rule(world.places_).order.kind, ExamineOrder::Kind::kRepeat);
  EXPECT_FALSE(arbiter.OnReport(0, "w0", "{").ok());
}

}  // namespace
}  // namespace muster
