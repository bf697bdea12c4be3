#include "common/dataset/sampler.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplerOptions Golden(int64_t dp_rank, int64_t consumed) {
  return {.total_samples = 11,
          .consumed_samples = consumed,
          .micro_batch_size = 2,
          .dp_rank = dp_rank,
          .dp_size = 2};
}

// Not torch's: identity rotated by the seed. Torch's order is checked in tests/worker/data.
std::vector<int64_t> Rotation(int64_t size, int64_t seed) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back((i + seed) % size);
  return order;
}

// G10.5.
TEST(SingleSamplerTest, Golden) {
  auto first = MakeSingleSampler(Golden(0, 4));
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(*(*first)->Next(), ElementsAre(4, 5));
  EXPECT_FALSE((*first)->Next().has_value());
  auto second = MakeSingleSampler(Golden(1, 4));
  EXPECT_THAT(*(*second)->Next(), ElementsAre(6, 7));
  EXPECT_FALSE((*second)->Next().has_value());
}

TEST(SingleSamplerTest, ResumeContinuesWhereItStopped) {
  for (int64_t dp_rank : {0, 1}) {
    auto whole = MakeSingleSampler(
        {.total_samples = 100, .micro_batch_size = 3, .dp_rank = dp_rank, .dp_size = 2});
    for (int step = 0; step < 5; ++step) (*whole)->Next();
    auto resumed = MakeSingleSampler({.total_samples = 100,
                                      .consumed_samples = 30,
                                      .micro_batch_size = 3,
                                      .dp_rank = dp_rank,
                                      .dp_size = 2});
    while (true) {
      const auto expected = (*whole)->Next();
      EXPECT_EQ((*resumed)->Next(), expected);
      if (!expected.has_value()) break;
    }
  }
}

TEST(SingleSamplerTest, ErrorsAreNamed) {
  EXPECT_EQ(MakeSingleSampler({.total_samples = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto consumed = MakeSingleSampler({.total_samples = 4, .consumed_samples = 4});
  EXPECT_EQ(consumed.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(consumed.status().ToString(), HasSubstr("end of data"));
  EXPECT_THAT(
      MakeSingleSampler({.total_samples = 4, .dp_rank = 2, .dp_size = 2}).status().ToString(),
      HasSubstr("dp_rank=2"));
}

TEST(CyclicSamplerTest, EachEpochCoversTheActiveSamplesOnce) {
  for (const bool sharded : {true, false}) {
    std::vector<std::unique_ptr<Sampler>> ranks;
    for (int64_t r : {0, 1}) {
      auto sampler = MakeCyclicSampler(Golden(r, 0), sharded, Rotation);
      ASSERT_TRUE(sampler.ok());
      ranks.push_back(*std::move(sampler));
    }
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      for (int step = 0; step < 2; ++step) {
        for (auto& rank : ranks) {
          const std::vector<int64_t> indices = *rank->Next();
          for (const int64_t i : indices) EXPECT_TRUE(seen.insert(i).second);
        }
      }
      EXPECT_EQ(seen.size(), 8u);
    }
  }
}

TEST(CyclicSamplerTest, ResumeInTheSecondEpochEqualsNoStop) {
  for (const bool sharded : {true, false}) {
    auto whole = MakeCyclicSampler(Golden(1, 0), sharded, Rotation);
    for (int step = 0; step < 3; ++step) (*whole)->Next();
    auto resumed = MakeCyclicSampler(Golden(1, 12), sharded, Rotation);
    for (int step = 0; step < 6; ++step) EXPECT_EQ((*resumed)->Next(), (*whole)->Next());
  }
}

TEST(CyclicSamplerTest, ErrorsAreNamed) {
  EXPECT_THAT(MakeCyclicSampler(Golden(0, 3), true, Rotation).status().ToString(),
              HasSubstr("consumed_samples=3"));
  EXPECT_THAT(MakeCyclicSampler({.total_samples = 3, .micro_batch_size = 4}, true, Rotation)
                  .status()
                  .ToString(),
              HasSubstr("smaller than"));
}

TEST(FullValidationSamplerTest, RanksTakeTurns) {
  std::vector<std::vector<int64_t>> taken;
  for (int64_t r : {0, 1}) {
    auto sampler = MakeFullValidationSampler({.total_samples = 5, .dp_rank = r, .dp_size = 2});
    taken.emplace_back();
    while (auto next = (*sampler)->Next()) taken.back().push_back((*next)[0]);
  }
  EXPECT_THAT(taken[0], ElementsAre(0, 2, 4));
  EXPECT_THAT(taken[1], ElementsAre(1, 3));
}

}  // namespace
}  // namespace muster
