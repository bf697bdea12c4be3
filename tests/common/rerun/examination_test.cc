#include "common/rerun/examination.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Two stages of a pipeline and two replicas: rank = 2 * replica + stage. A stage sends what it
// computed, gets a gradient back, and reduces its own gradient with the other replica's stage.
struct World {
  // What each rank's device adds to all that it computes.
  std::vector<uint64_t> faults = {0, 0, 0, 0};
  std::vector<std::string> workers = {"w0", "w1", "w2", "w3"};

  std::vector<RunRecord> Run() const {
    std::vector<RunRecord> records(4);
    std::vector<uint64_t> gradient(4);
    for (size_t replica : {0, 1}) {
      const size_t a = 2 * replica, b = a + 1;
      const std::string pp = absl::StrCat("pp [", a, "-", b, "]");
      const std::string forward = absl::StrCat("send ", a, ">", b),
                        back = absl::StrCat("send ", b, ">", a);
      const uint64_t sent = 10 + replica + faults[a];
      const uint64_t returned = 100 + sent + faults[b];
      gradient[a] = 1000 + returned + faults[a];
      gradient[b] = 2000 + sent + faults[b];
      records[a].fingerprints = {{0, pp, forward, sent, true}, {0, pp, back, 0, false}};
      records[b].fingerprints = {{0, pp, forward, 0, false}, {0, pp, back, returned, true}};
    }
    for (size_t stage : {0, 1}) {
      const std::string dp = absl::StrCat("dp [", stage, ", ", stage + 2, "]");
      const uint64_t sum = gradient[stage] + gradient[stage + 2];
      for (size_t rank : {stage, stage + 2}) {
        records[rank].worker = workers[rank];
        records[rank].fingerprints.push_back({0, dp, "all_reduce", gradient[rank], true});
        records[rank].fingerprints.push_back({0, "world", kResultOp, sum, true});
      }
    }
    return records;
  }
};

TEST(CompareRunsTest, EqualRunsBlameNobody) {
  const Comparison comparison = CompareRuns(World().Run(), World().Run());
  EXPECT_TRUE(comparison.equal);
  EXPECT_THAT(comparison.convicted, IsEmpty());
}

// Wherever it sits, the faulty rank is found, not the ones that it has spoiled.
TEST(CompareRunsTest, TheRankWithEqualInputsAndAnotherOutputIsConvicted) {
  const char* const operations[] = {"send 0>1 0 of pp [0-1]", "send 1>0 0 of pp [0-1]",
                                    "send 2>3 0 of pp [2-3]", "send 3>2 0 of pp [2-3]"};
  for (size_t faulty = 0; faulty < 4; ++faulty) {
    SCOPED_TRACE(faulty);
    World with;
    with.faults[faulty] = 7;
    // In the second run the faulty worker is away: a spare has its rank.
    World without;
    without.workers[faulty] = "spare";
    const auto first = with.Run(), second = without.Run();
    const Comparison comparison = CompareRuns(first, second);
    EXPECT_FALSE(comparison.equal);
    ASSERT_THAT(comparison.convicted, SizeIs(1));
    EXPECT_EQ(comparison.convicted[0].rank, static_cast<int>(faulty));
    EXPECT_EQ(comparison.convicted[0].operation, operations[faulty]);
    EXPECT_EQ(comparison.convicted[0].first, comparison.convicted[0].second + 7);
    EXPECT_THAT(Suspects(comparison, first, second),
                ElementsAre("spare", absl::StrCat("w", faulty)));
  }
}

// Two workers change places: the fault goes along, and only one worker explains both differences.
TEST(CompareRunsTest, AnExchangeNamesTheWorkerThatIsWrongInBothPlaces) {
  World before;
  before.faults = {0, 0, 7, 0};
  World after;
  after.faults = {7, 0, 0, 0};
  after.workers = {"w2", "w1", "w0", "w3"};
  const auto first = before.Run(), second = after.Run();
  const Comparison comparison = CompareRuns(first, second);
  EXPECT_THAT(comparison.convicted, SizeIs(2));
  EXPECT_THAT(Suspects(comparison, first, second), ElementsAre("w0", "w2"))
      << "both have run both ranks: the results say which of them";
  // A cycle of three tells it by itself.
  after.faults = {7, 0, 0, 0};
  after.workers = {"w2", "w0", "w1", "w3"};
  const auto third = after.Run();
  EXPECT_THAT(Suspects(CompareRuns(first, third), first, third), ElementsAre("w2"));
}

TEST(CompareRunsTest, RunsOfOtherOperationsAreNotComparable) {
  auto first = World().Run(), second = World().Run();
  second[1].fingerprints.pop_back();
  const Comparison comparison = CompareRuns(first, second);
  EXPECT_FALSE(comparison.comparable);
  EXPECT_FALSE(comparison.equal);
  EXPECT_THAT(comparison.convicted, IsEmpty());
}

TEST(CompareRunsTest, ADifferenceThatCameFromOutsideConvictsNobody) {
  // Rank 0 and rank 1 each got something else from the other first: nobody was given the same.
  std::vector<RunRecord> first(2), second(2);
  first[0].fingerprints = {{0, "g", "x", 0, false}, {0, "g", "y", 1, true}};
  second[0].fingerprints = {{0, "g", "x", 0, false}, {0, "g", "y", 2, true}};
  first[1].fingerprints = {{0, "g", "y", 0, false}, {0, "g", "x", 1, true}};
  second[1].fingerprints = {{0, "g", "y", 0, false}, {0, "g", "x", 2, true}};
  const Comparison comparison = CompareRuns(first, second);
  EXPECT_THAT(comparison.convicted, IsEmpty());
  EXPECT_TRUE(comparison.earliest.has_value());
}

TEST(CompareRunsTest, ARunWithTooManyOperationsConvictsNobody) {
  World faulty;
  faulty.faults[0] = 7;
  const auto first = faulty.Run();
  auto second = World().Run();
  second[3].complete = false;
  second[3].fingerprints.clear();
  const Comparison comparison = CompareRuns(first, second);
  EXPECT_FALSE(comparison.equal);
  EXPECT_THAT(comparison.convicted, IsEmpty());
}

// Many operations of few groups: a report grows by some 25 bytes for each, whatever their names.
TEST(ExaminationJsonTest, AReportOfAsManyOperationsAsThereMayBeFitsIntoAMessage) {
  ExamineReport report;
  for (size_t i = 0; i < kMaxFingerprints; ++i) {
    report.run.fingerprints.push_back({static_cast<int64_t>(i / 4), absl::StrCat("group ", i % 4),
                                       std::string(200, 'x'), ~uint64_t{i}, true});
  }
  const std::string text = EncodeExamineReport(report);
  EXPECT_LT(text.size(), size_t{1} << 20);
  const auto back = DecodeExamineReport(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->run.fingerprints, report.run.fingerprints);
  report.run = {.complete = false};
  EXPECT_FALSE(DecodeExamineReport(EncodeExamineReport(report))->run.complete);
}

TEST(ExaminationJsonTest, ReportsAndOrdersComeBack) {
  ExamineReport report{.stage = ExamineReport::Stage::kElsewhere,
                       .iteration = 7,
                       .common_json = "{}",
                       .rank_json = "{\"a\":1}",
                       .finding = "same",
                       .followed = true,
                       .differs = true,
                       .rejected_again = true,
                       .initial_result = std::nan(""),
                       .result = 1.5};
  report.run.serial = "GPU-1";
  report.run.fingerprints = World().Run()[1].fingerprints;
  const auto back = DecodeExamineReport(EncodeExamineReport(report));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->iteration, 7);
  EXPECT_EQ(back->stage, ExamineReport::Stage::kElsewhere);
  EXPECT_TRUE(back->differs && back->followed && back->rejected_again);
  EXPECT_EQ(back->rank_json, report.rank_json);
  EXPECT_TRUE(std::isnan(back->initial_result));
  EXPECT_EQ(back->result, 1.5);
  EXPECT_EQ(back->run.serial, "GPU-1");
  EXPECT_EQ(back->run.fingerprints, report.run.fingerprints);
  EXPECT_TRUE(back->run.complete);

  for (const ExamineOrder::Kind kind :
       {ExamineOrder::Kind::kRerun, ExamineOrder::Kind::kRepeat, ExamineOrder::Kind::kAccept}) {
    const ExamineOrder order{
        .kind = kind, .iteration = 7, .reason = "why", .rank_jsons = {"{}", "[]"}};
    const auto order_back = DecodeExamineOrder(EncodeExamineOrder(order));
    ASSERT_TRUE(order_back.ok()) << order_back.status();
    EXPECT_EQ(order_back->kind, kind);
    EXPECT_EQ(OrdersRerun(EncodeExamineOrder(order)), kind == ExamineOrder::Kind::kRerun);
    EXPECT_EQ(order_back->rank_jsons, order.rank_jsons);
  }
  EXPECT_FALSE(DecodeExamineOrder(R"({"kind":"dance"})").ok());
  EXPECT_FALSE(DecodeExamineReport("{}").ok());
}

}  // namespace
}  // namespace muster
