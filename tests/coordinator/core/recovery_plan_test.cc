#include "coordinator/core/recovery_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using State = RecoveryRank::State;

// Workers are "n<node>/<slot>"; ranks r of two a node on n0/0, n0/1, n1/0, ...
class RecoveryPlanTest : public testing::Test {
 protected:
  void Use(const TestSpecOptions& options) {
    spec_ = ParseJobSpec(TestSpec(options)).spec;
    input_ = {.spec = &spec_};
    for (int r = 0; r < options.world_size; ++r) {
      input_.ranks.push_back({.worker = Named(absl::StrCat("n", r / 2, "/", r % 2))});
    }
  }
  static RecoveryWorker Named(const std::string& name) {
    const std::vector<std::string> parts = absl::StrSplit(name, '/');
    return {name, parts[0], parts[1][0] - '0'};
  }
  void Set(int rank, State state) { input_.ranks[rank].state = state; }
  // "n0/0 n1/0=in_place ... | spares", or why not.
  std::string Plan() {
    plan_ = PlanRecovery(input_);
    if (plan_.kind != RecoveryPlan::Kind::kGo) return plan_.reason;
    std::vector<std::string> parts;
    for (const RecoveryPlan::Rank& rank : plan_.ranks) {
      parts.push_back(rank.source == RankSource::kSurvivor
                          ? rank.worker
                          : absl::StrCat(rank.worker, "=", RankSourceName(rank.source)));
    }
    return absl::StrCat(absl::StrJoin(parts, " "), " | ", absl::StrJoin(plan_.spares, " "));
  }

  JobSpec spec_;
  RecoveryInput input_;
  RecoveryPlan plan_;
};

TEST_F(RecoveryPlanTest, AHitRankGetsANewProcessOnItsWorker) {
  Use({.world_size = 4});
  Set(2, State::kVacant);
  input_.spares = {Named("n5/0")};
  EXPECT_EQ(Plan(), "n0/0 n0/1 n1/0=in_place n1/1 | n5/0");
  EXPECT_EQ(plan_.change, "in_place");
  EXPECT_EQ(plan_.reason, "rank 2 in place on n1/0");
}

TEST_F(RecoveryPlanTest, ThenASpareThenAnIdleWorkerOfTheSameNodeFirst) {
  Use({.world_size = 4});
  Set(0, State::kGone);
  Set(1, State::kGone);
  Set(2, State::kGone);
  input_.spares = {Named("n5/0")};
  input_.idle = {Named("n4/0"), Named("n1/3")};
  EXPECT_EQ(Plan(), "n5/0=spare n4/0=idle n1/3=idle n1/1 | ");
  EXPECT_EQ(plan_.change, "spare");
}

TEST_F(RecoveryPlanTest, ASuspectWorkerIsTheLastChoice) {
  Use({.world_size = 2});
  Set(1, State::kVacant);
  input_.ranks[1].suspect = true;
  EXPECT_EQ(Plan(), "n0/0 n0/1=in_place | ");
  input_.idle = {Named("n4/0")};
  EXPECT_EQ(Plan(), "n0/0 n4/0=idle | n0/1");
}

TEST_F(RecoveryPlanTest, AllAliveFormAgain) {
  Use({.world_size = 2});
  EXPECT_EQ(Plan(), "n0/0 n0/1 | ");
  EXPECT_EQ(plan_.change, "reform");
}

TEST_F(RecoveryPlanTest, AnEndThatIsOnItsWayIsWaitedFor) {
  Use({.world_size = 4});
  Set(1, State::kEnding);
  Set(3, State::kEnding);
  EXPECT_EQ(Plan(), "waits for the end of the trainers of ranks 1,3");
  EXPECT_EQ(plan_.kind, RecoveryPlan::Kind::kAwaitExits);
}

TEST_F(RecoveryPlanTest, WithoutWorkersItSaysWhatItLacks) {
  Use({.world_size = 4});
  Set(1, State::kGone);
  Set(3, State::kGone);
  input_.idle = {Named("n7/0")};
  EXPECT_EQ(Plan(), "needs 4 cpu workers and has 3: waits for 1 more");
}

// Global batch 4 of micro batch 1: 4, 2 and 1 replicas are possible, 3 are not.
TEST_F(RecoveryPlanTest, ElasticDropsTheReplicasThatAreHit) {
  Use({.world_size = 4, .elastic = true});
  Set(1, State::kGone);
  EXPECT_EQ(Plan(), "n0/0 n1/0 | n1/1");
  EXPECT_EQ(plan_.change, "shrink");
  EXPECT_EQ(plan_.data_parallel_size, 2);
}

TEST_F(RecoveryPlanTest, ElasticFillsAReplicaFromTheSamePlaceOfAnother) {
  Use({.world_size = 4, .elastic = true, .tensor_parallel = 2});
  Set(0, State::kGone);  // tp 0 of replica 0
  Set(3, State::kGone);  // tp 1 of replica 1
  EXPECT_EQ(Plan(), "n1/0=moved n0/1 | ");
  EXPECT_EQ(plan_.data_parallel_size, 1);
}

TEST_F(RecoveryPlanTest, InPlaceComesBeforeFewerReplicas) {
  Use({.world_size = 4, .elastic = true});
  Set(1, State::kVacant);
  EXPECT_EQ(Plan(), "n0/0 n0/1=in_place n1/0 n1/1 | ");
}

TEST_F(RecoveryPlanTest, AShrunkJobGrowsWhenItRecovers) {
  Use({.world_size = 4, .elastic = true});
  input_.ranks.resize(2);
  Set(0, State::kVacant);
  input_.spares = {Named("n8/0")};
  input_.idle = {Named("n9/0"), Named("n9/1")};
  EXPECT_EQ(Plan(), "n0/0=in_place n0/1 n8/0=spare n9/0=idle | ");
  EXPECT_EQ(plan_.change, "grow");
}

TEST_F(RecoveryPlanTest, NobodyIsLostAndNobodyIsThereTwice) {
  std::mt19937 random(11);
  const auto pick = [&](int below) { return static_cast<int>(random() % below); };
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const int tp = 1 + pick(2);
    Use({.world_size = tp * (1 << pick(3)), .elastic = pick(2) == 0, .tensor_parallel = tp});
    std::set<std::string> survivors;
    for (RecoveryRank& rank : input_.ranks) {
      rank.state = static_cast<State>(pick(10) < 6 ? 0 : 2 + pick(2));
      rank.suspect = pick(4) == 0;
      if (rank.state == State::kAlive) survivors.insert(rank.worker.name);
    }
    for (int i = pick(3); i > 0; --i) input_.spares.push_back(Named(absl::StrCat("s", i, "/0")));
    for (int i = pick(3); i > 0; --i) input_.idle.push_back(Named(absl::StrCat("i", i, "/0")));
    const RecoveryPlan plan = PlanRecovery(input_);
    if (plan.kind != RecoveryPlan::Kind::kGo) {
      EXPECT_FALSE(plan.reason.empty());
      continue;
    }
    EXPECT_EQ(static_cast<int64_t>(plan.ranks.size()), plan.data_parallel_size * tp);
    std::set<std::string> seen;
    for (const RecoveryPlan::Rank& rank : plan.ranks) {
      EXPECT_TRUE(seen.insert(rank.worker).second) << rank.worker;
      for (const RecoveryRank& former : input_.ranks) {
        if (former.worker.name != rank.worker) continue;
        EXPECT_NE(former.state, State::kGone);
      }
    }
    for (const std::string& spare : plan.spares) EXPECT_TRUE(seen.insert(spare).second) << spare;
    for (const std::string& survivor : survivors) EXPECT_TRUE(seen.contains(survivor)) << survivor;
  }
}

}  // namespace
}  // namespace muster
