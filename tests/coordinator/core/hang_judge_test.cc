#include "coordinator/core/hang_judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = HangVerdict::Kind;

OpArrival Op(const std::string& group, std::vector<int> ranks, int64_t sequence, bool done,
             const std::string& operation = "all_reduce 64 float") {
  return {.group = group,
          .ranks = std::move(ranks),
          .sequence = sequence,
          .operation = operation,
          .done = done,
          .age_ms = done ? 0.0 : 1400.0};
}

// What one rank looks like in both probes.
struct Rank {
  std::string state = "S";
  bool answers = true;
  double thread_cpu_ms = 0, process_cpu_ms = 0;  // between the probes
  std::vector<OpArrival> ops = {};
  int64_t iteration = 5, rises = 0;
  bool heard = true, running = true;
};

HangVerdict JudgeRanks(const std::vector<Rank>& ranks,
                       const HangOptions& options = {.committed = 5}) {
  HangProbe first{.request = 1}, second{.request = 2};
  for (const Rank& rank : ranks) {
    ProbeReport report{.running = rank.running, .process_state = rank.state, .cpu_ms = 1000};
    if (rank.answers) {
      report.reply = ProbeReplyMessage{
          .iteration = rank.iteration, .phase = "training", .thread_cpu_ms = 900, .ops = rank.ops};
    }
    first.reports.emplace_back(report);
    report.cpu_ms += rank.process_cpu_ms;
    if (rank.answers) {
      report.reply->thread_cpu_ms += rank.thread_cpu_ms;
      report.reply->iteration += rank.rises;
    }
    second.reports.emplace_back(report);
    if (!rank.heard) first.reports.back() = second.reports.back() = std::nullopt;
  }
  return JudgeHang(first, second, options);
}

const std::vector<int> kAll = {0, 1, 2};

Rank Waiting(int64_t sequence = 118) { return {.ops = {Op("dp", kAll, sequence, false)}}; }
Rank Missing(int64_t sequence = 117) { return {.ops = {Op("dp", kAll, sequence, true)}}; }

TEST(HangJudgeTest, OneThatIsStoppedIsTheCulpritWhateverTheOthersShow) {
  const HangVerdict verdict = JudgeRanks({Waiting(), {.state = "T", .answers = false}, Missing()});
  EXPECT_EQ(verdict.kind, Kind::kHang);
  EXPECT_THAT(verdict.culprits, ElementsAre(HangVerdict::Culprit{1, "is stopped (state T)"}));
  EXPECT_EQ(verdict.summary, "rank 1 is stopped (state T)");
  EXPECT_THAT(verdict.arrivals, HasSubstr("dp (ranks 0-2) all_reduce 64 float, number 118: rank 0 "
                                          "waits for 1.4s; missing: rank 1 (nothing of it), rank 2 "
                                          "(at number 117, done)"));
}

TEST(HangJudgeTest, SeveralThatAreStoppedAreAllCulprits) {
  const HangVerdict verdict =
      JudgeRanks({{.state = "T", .answers = false}, Waiting(), {.state = "T", .answers = false}});
  ASSERT_EQ(verdict.culprits.size(), 2u);
  EXPECT_EQ(verdict.culprits[0].rank, 0);
  EXPECT_EQ(verdict.culprits[1].rank, 2);
}

TEST(HangJudgeTest, OneThatDoesNotAnswerAndUsesNoCpuIsTheCulprit) {
  EXPECT_THAT(JudgeRanks({Waiting(), Waiting(), {.state = "D", .answers = false}}).culprits,
              ElementsAre(HangVerdict::Culprit{2, "does not answer (state D)"}));
  // One that is only short of time uses what it gets.
  EXPECT_THAT(
      JudgeRanks({Waiting(), Waiting(), {.state = "R", .answers = false, .process_cpu_ms = 60}})
          .culprits,
      IsEmpty());
  // A debugger holds it.
  EXPECT_THAT(JudgeRanks({Waiting(), Waiting(), {.state = "t", .answers = false}}).culprits,
              IsEmpty());
}

TEST(HangJudgeTest, WhoHasNotArrivedWhereOthersWaitIsTheCulprit) {
  const HangVerdict verdict = JudgeRanks({Waiting(), Waiting(), Missing()});
  EXPECT_EQ(verdict.kind, Kind::kHang);
  EXPECT_THAT(verdict.culprits,
              ElementsAre(HangVerdict::Culprit{
                  2,
                  "has not arrived in dp's all_reduce 64 float (number 118): ranks 0-1 wait "
                  "there for 1.4s"}));
  EXPECT_THAT(verdict.arrivals, HasSubstr("missing: rank 2 (at number 117, done)"));
}

TEST(HangJudgeTest, OneThatComputesIsSlowAndNobodyIsAccused) {
  Rank slow = Missing();
  slow.thread_cpu_ms = 60;
  const HangVerdict verdict = JudgeRanks({Waiting(), Waiting(), slow});
  EXPECT_EQ(verdict.kind, Kind::kSlow);
  EXPECT_THAT(verdict.culprits, IsEmpty());
  EXPECT_THAT(verdict.summary, HasSubstr("rank 2 computes"));
  EXPECT_THAT(verdict.slow, ElementsAre(2));
  // Helpers of the thread may do the work, but not where they spin while they wait.
  Rank helped = Missing();
  helped.process_cpu_ms = 400;
  EXPECT_EQ(JudgeRanks({Waiting(), Waiting(), helped}).kind, Kind::kSlow);
  EXPECT_EQ(
      JudgeRanks({Waiting(), Waiting(), helped}, {.count_process = false, .committed = 5}).kind,
      Kind::kHang);
  Rank reads = Missing();
  reads.state = "D";
  EXPECT_EQ(JudgeRanks({Waiting(), Waiting(), reads}).kind, Kind::kSlow);
}

TEST(HangJudgeTest, TheCauseIsWhoWaitsForNobody) {
  // 0 and 1 wait in tp for each other's pipeline: 1 waits for 2's message, 2 does nothing.
  const std::vector<Rank> ranks = {
      {.ops = {Op("tp", {0, 1}, 9, false)}},
      {.ops = {Op("tp", {0, 1}, 8, true), Op("pp", {1, 2}, 3, false, "send_recv 16 float")}},
      {.ops = {Op("pp", {1, 2}, 7, true, "send_recv 16 float")}}};
  const HangVerdict verdict = JudgeRanks(ranks);
  ASSERT_EQ(verdict.culprits.size(), 1u);
  EXPECT_EQ(verdict.culprits[0].rank, 2);
  EXPECT_THAT(verdict.culprits[0].reason, HasSubstr("does not take part in pp's send_recv"));
}

TEST(HangJudgeTest, ProgressOfAnyRankMeansNobodyHangs) {
  Rank rising = Missing();
  rising.rises = 1;
  EXPECT_EQ(JudgeRanks({Waiting(), {.state = "T", .answers = false}, rising}).kind,
            Kind::kProgress);
  // News of it is on its way.
  const HangVerdict verdict =
      JudgeRanks({Waiting(), {.state = "T", .answers = false}, Missing()}, {.committed = 4});
  EXPECT_EQ(verdict.kind, Kind::kProgress);
  EXPECT_EQ(verdict.iteration, 5);
}

TEST(HangJudgeTest, WhereAnAgentIsNotHeardOnlyWhatNeedsNoOthersWordCounts) {
  Rank unheard;
  unheard.heard = false;
  const HangVerdict verdict = JudgeRanks({Waiting(), unheard, Missing()});
  EXPECT_EQ(verdict.kind, Kind::kUnclear);
  EXPECT_THAT(verdict.summary, HasSubstr("rank 1 has an agent that does not answer"));
  EXPECT_EQ(JudgeRanks({{.state = "T", .answers = false}, unheard, Missing()}).culprits.size(), 1u);
}

TEST(HangJudgeTest, NobodyIsAccusedWithoutNeed) {
  struct Row {
    const char* name;
    std::vector<Rank> ranks;
    HangOptions options;
    Kind kind;
    const char* says;
  };
  Rank ended;
  ended.running = false;
  Rank computing;
  computing.thread_cpu_ms = 400;
  const Row rows[] = {
      {"all wait",
       {Waiting(), Waiting(), Waiting()},
       {.committed = 5},
       Kind::kUnclear,
       "nobody is missing"},
      {"an exit is on its way",
       {Waiting(), Waiting(), ended},
       {.committed = 5},
       Kind::kUnclear,
       "has ended"},
      {"arrivals do not count yet",
       {Waiting(), Waiting(), Missing()},
       {.judge_arrivals = false, .committed = 5},
       Kind::kUnclear,
       "all trainers answer"},
      {"all compute", {computing, computing, computing}, {.committed = 5}, Kind::kSlow, "compute"},
      {"all idle outside of any operation",
       {Missing(), Missing(), Missing()},
       {.committed = 5},
       Kind::kUnclear,
       "nobody is missing"},
      {"no ranks", {}, {}, Kind::kUnclear, ""},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const HangVerdict verdict = JudgeRanks(row.ranks, row.options);
    EXPECT_EQ(verdict.kind, row.kind);
    EXPECT_THAT(verdict.culprits, IsEmpty());
    EXPECT_THAT(verdict.summary, HasSubstr(row.says));
  }
}

TEST(HangJudgeTest, ARankAloneHangsWhenItDoesNothing) {
  EXPECT_EQ(JudgeRanks({Rank{}}).culprits.size(), 1u);
  EXPECT_EQ(JudgeRanks({Rank{.thread_cpu_ms = 300}}).kind, Kind::kSlow);
}

TEST(HangJudgeTest, BothProbesMustAgree) {
  HangProbe first{.request = 1}, second{.request = 2};
  const ProbeReport stopped{.running = true, .process_state = "T"};
  ProbeReport well{.running = true, .process_state = "S", .reply = ProbeReplyMessage{}};
  well.reply->ops = {Op("dp", {0, 1}, 4, false)};
  first.reports = {well, stopped};
  second.reports = {well, well};
  EXPECT_THAT(JudgeHang(first, second, {}).culprits, IsEmpty());
  std::swap(first, second);
  EXPECT_THAT(JudgeHang(first, second, {}).culprits, IsEmpty());
  // Missing in one operation, then in the next: it goes on.
  ProbeReport missing = well;
  missing.reply->ops = {Op("dp", {0, 1}, 3, true)};
  first.reports = {well, missing};
  well.reply->ops[0].sequence = 6;
  missing.reply->ops[0].sequence = 5;
  second.reports = {well, missing};
  EXPECT_THAT(JudgeHang(first, second, {}).culprits, IsEmpty());
}

TEST(HangJudgeTest, TheTableIsBounded) {
  std::vector<Rank> ranks(40);
  for (int r = 0; r < 40; ++r) ranks[r].ops = {Op("dp", {r, (r + 1) % 40}, 4, r % 2 == 1)};
  const HangVerdict verdict = JudgeRanks(ranks);
  EXPECT_THAT(verdict.arrivals, HasSubstr("and 12 more groups"));
  EXPECT_LT(verdict.arrivals.size(), 2'000u);
}

}  // namespace
}  // namespace muster
