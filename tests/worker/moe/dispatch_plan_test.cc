#include "worker/moe/dispatch_plan.h"

#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::ElementsAre;

// Reference G14.5.
TEST(DispatchPlanTest, TwoRanksOfTwoExperts) {
  const std::vector<int64_t> counts{3, 2, 1, 2, 0, 1, 4, 3};
  const DispatchPlan first = PlanDispatch({.num_experts = 4, .ep_rank = 0, .ep_size = 2}, counts);
  EXPECT_THAT(first.input_splits, ElementsAre(5, 3));
  EXPECT_THAT(first.output_splits, ElementsAre(5, 1));
  EXPECT_THAT(first.rows_per_expert, ElementsAre(3, 3));
  EXPECT_THAT(first.chunk_rows, ElementsAre(3, 2, 0, 1));
  EXPECT_THAT(first.chunk_order, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(first.inverse_chunk_order, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(first.gathered_splits, ElementsAre(6));
  const DispatchPlan second = PlanDispatch({.num_experts = 4, .ep_rank = 1, .ep_size = 2}, counts);
  EXPECT_THAT(second.input_splits, ElementsAre(1, 7));
  EXPECT_THAT(second.output_splits, ElementsAre(3, 7));
  EXPECT_THAT(second.rows_per_expert, ElementsAre(5, 5));
  EXPECT_THAT(second.chunk_rows, ElementsAre(1, 2, 4, 3));
}

// ep 2, etp 2, 2 experts: each rank has one expert, whose rows arrive by (etp, ep) of the source.
TEST(DispatchPlanTest, SourcesAreOrderedByExpertTensorParallelRankFirst) {
  const std::vector<int64_t> counts{1, 10, 2, 20, 3, 30, 4, 40};  // ranks (0,0) (0,1) (1,0) (1,1)
  const DispatchPlan plan = PlanDispatch(
      {.num_experts = 2, .ep_rank = 1, .ep_size = 2, .etp_rank = 1, .etp_size = 2}, counts);
  EXPECT_THAT(plan.chunk_rows, ElementsAre(10, 30, 20, 40));
  EXPECT_THAT(plan.input_splits, ElementsAre(4, 40));
  EXPECT_THAT(plan.output_splits, ElementsAre(20, 40));
  EXPECT_THAT(plan.gathered_splits, ElementsAre(40, 60));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(100));
}

// Moves labelled rows through all ranks' plans by hand: each expert gets exactly its rows.
TEST(DispatchPlanTest, EveryRowReachesItsExpertOnAllItsRanks) {
  constexpr uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int64_t ep = 1 + random() % 8, etp = 1 + random() % 2, local = 1 + random() % 3;
    const int64_t experts = ep * local, ranks = ep * etp;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " round " << round << " ep " << ep
                                    << " etp " << etp << " experts " << experts);
    std::vector<int64_t> counts(ranks * experts);
    for (int64_t& count : counts) count = random() % 4 == 0 ? 0 : random() % 5;
    struct Row {
      int64_t rank, expert, index;
      auto operator<=>(const Row&) const = default;
    };
    std::vector<DispatchPlan> plans;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      plans.push_back(PlanDispatch({.num_experts = experts,
                                    .ep_rank = rank / etp,
                                    .ep_size = ep,
                                    .etp_rank = rank % etp,
                                    .etp_size = etp},
                                   counts));
    }
    std::vector<std::vector<Row>> sent(ranks), arrived(ranks), gathered(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t i = 0; i < counts[rank * experts + e]; ++i) sent[rank].push_back({rank, e, i});
      }
      const std::vector<int64_t>& splits = plans[rank].input_splits;
      ASSERT_EQ(std::accumulate(splits.begin(), splits.end(), int64_t{0}),
                static_cast<int64_t>(sent[rank].size()));
    }
    for (int64_t to = 0; to < ranks; ++to) {
      for (int64_t s = 0; s < ep; ++s) {
        const int64_t from = s * etp + to % etp;
        const std::vector<int64_t>& splits = plans[from].input_splits;
        ASSERT_EQ(plans[to].output_splits[s], splits[to / etp]);
        const auto begin = sent[from].begin() +
                           std::accumulate(splits.begin(), splits.begin() + to / etp, int64_t{0});
        arrived[to].insert(arrived[to].end(), begin, begin + splits[to / etp]);
      }
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const DispatchPlan& plan = plans[rank];
      for (int64_t t = 0; t < etp; ++t) {
        const std::vector<Row>& part = arrived[rank / etp * etp + t];
        ASSERT_EQ(plan.gathered_splits[t], static_cast<int64_t>(part.size()));
        gathered[rank].insert(gathered[rank].end(), part.begin(), part.end());
      }
      std::vector<int64_t> begins(plan.chunk_rows.size());
      std::exclusive_scan(plan.chunk_rows.begin(), plan.chunk_rows.end(), begins.begin(),
                          int64_t{0});
      std::vector<Row> sorted, expected;
      for (size_t i = 0; i < plan.chunk_order.size(); ++i) {
        const int64_t chunk = plan.chunk_order[i];
        ASSERT_EQ(plan.inverse_chunk_order[chunk], static_cast<int64_t>(i));
        const auto begin = gathered[rank].begin() + begins[chunk];
        sorted.insert(sorted.end(), begin, begin + plan.chunk_rows[chunk]);
      }
      for (int64_t e = 0; e < local; ++e) {
        int64_t rows = 0;
        const int64_t expert = rank / etp * local + e;
        for (int64_t t = 0; t < etp; ++t) {
          for (int64_t s = 0; s < ep; ++s) {
            const int64_t from = s * etp + t;
            for (int64_t i = 0; i < counts[from * experts + expert]; ++i, ++rows) {
              expected.push_back({from, expert, i});
            }
          }
        }
        ASSERT_EQ(plan.rows_per_expert[e], rows);
      }
      ASSERT_TRUE(sorted == expected);
    }
  }
}

}  // namespace
}  // namespace muster
