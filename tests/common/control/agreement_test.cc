#include "common/control/agreement.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "common/control/directive_log.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

StepDecision Agree(const std::vector<StepVote>& votes) {
  AgreementVector reduced = ToVector(votes[0]);
  for (const StepVote& vote : votes) reduced = MaxOf(reduced, ToVector(vote));
  return FromReduced(reduced);
}

TEST(AgreementTest, DirectivesAreAgreedThroughTheMinimum) {
  EXPECT_EQ(Agree({{.gap_free_directive = 7}, {.gap_free_directive = 3}, {.gap_free_directive = 5}})
                .apply_directives_through,
            3);
  EXPECT_EQ(Agree({{.gap_free_directive = 7}, {.gap_free_directive = 0}}).apply_directives_through,
            0);
}

TEST(AgreementTest, OneRankIsEnoughForAFlag) {
  const StepDecision decision = Agree({{},
                                       {.found_inf = true},
                                       {.something_wrong = true},
                                       {.exit_wish = ExitWish::kSignal},
                                       {.exit_wish = ExitWish::kDuration}});
  EXPECT_TRUE(decision.found_inf);
  EXPECT_TRUE(decision.something_wrong);
  EXPECT_EQ(decision.exit_wish, ExitWish::kSignal);
  EXPECT_FALSE(decision.norm_too_large);
  EXPECT_EQ(Agree({{}, {}}), StepDecision{});
}

TEST(AgreementTest, OneRankIsEnoughToSkipForTheNormAndFoundInfIsStronger) {
  const StepDecision skipped = Agree({{}, {.norm_too_large = true}});
  EXPECT_TRUE(skipped.norm_too_large);
  EXPECT_FALSE(skipped.found_inf);
  const StepDecision both = Agree({{.norm_too_large = true}, {.found_inf = true}});
  EXPECT_FALSE(both.norm_too_large);
  EXPECT_TRUE(both.found_inf);
}

TEST(AgreementTest, ASnapshotCountsOnceEveryRankHoldsIt) {
  EXPECT_EQ(Agree({{.snapshot_complete = 20}, {.snapshot_complete = 10}}).snapshots_counted, 10);
  EXPECT_EQ(Agree({{.snapshot_complete = 20}, {}}).snapshots_counted, -1);
  EXPECT_EQ(Agree({{.snapshot_complete = 0}, {.snapshot_complete = 5}}).snapshots_counted, 0);
}

// N ranks step together; a coordinator sends directives to each over a network that delays,
// repeats and reorders. Every rank must apply each directive at the same step, once, in order.
struct Delivery {
  int step;
  int rank;
  Directive directive;
};

void Simulate(uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  auto below = [&random](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int num_ranks = 1 + below(16);
  const int num_directives = below(20);
  const int last_send = 40, max_delay = 15, num_steps = last_send + max_delay + 2;

  std::vector<Delivery> network;
  std::vector<int> sent_at(1, 0);  // by directive number
  for (int number = 1; number <= num_directives; ++number) sent_at.push_back(below(last_send));
  std::sort(sent_at.begin(), sent_at.end());  // the coordinator numbers them as it sends them
  for (int number = 1; number <= num_directives; ++number) {
    const Directive directive{number, static_cast<Directive::Kind>(below(4)),
                              std::to_string(number)};
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int copies = 1 + below(3); copies > 0; --copies) {
        network.push_back({sent_at[number] + below(max_delay), rank, directive});
      }
    }
  }
  std::shuffle(network.begin(), network.end(), random);

  std::vector<DirectiveLog> logs(num_ranks);
  std::vector<std::vector<std::pair<int, int64_t>>> applied(num_ranks);  // (step, number)
  for (int step = 0; step < num_steps; ++step) {
    for (const Delivery& delivery : network) {
      if (delivery.step == step) {
        ASSERT_TRUE(logs[delivery.rank].Receive(delivery.directive).ok());
      }
    }
    std::vector<StepVote> votes;
    for (const DirectiveLog& log : logs) {
      votes.push_back({.gap_free_directive = log.gap_free_through()});
    }
    const StepDecision decision = Agree(votes);
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (const Directive& directive : logs[rank].Apply(decision.apply_directives_through)) {
        EXPECT_LE(sent_at[directive.number], step) << "applied before it was sent";
        applied[rank].emplace_back(step, directive.number);
      }
    }
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    EXPECT_EQ(applied[rank], applied[0]) << "rank " << rank;
    ASSERT_EQ(applied[rank].size(), static_cast<size_t>(num_directives));
    for (int i = 0; i < num_directives; ++i) EXPECT_EQ(applied[rank][i].second, i + 1);
  }
}

TEST(AgreementTest, EveryRankAppliesEachDirectiveAtTheSameStepOnceAndInOrder) {
  for (uint64_t seed = 1; seed <= 300; ++seed) Simulate(seed);
}

}  // namespace
}  // namespace muster
