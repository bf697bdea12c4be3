#include "worker/data/context_slices.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::ElementsAre;

std::vector<int64_t> TokensOf(int rank, int size) {
  const at::Tensor own = SliceForContext(at::arange(16).view({1, 16}), 1, {rank, size});
  return {own.const_data_ptr<int64_t>(), own.const_data_ptr<int64_t>() + own.numel()};
}

// Reference G14.2: 16 tokens.
TEST(ContextSlicesTest, RanksHoldAChunkFromEachEnd) {
  EXPECT_THAT(TokensOf(0, 2), ElementsAre(0, 1, 2, 3, 12, 13, 14, 15));
  EXPECT_THAT(TokensOf(1, 2), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(TokensOf(0, 4), ElementsAre(0, 1, 14, 15));
  EXPECT_THAT(TokensOf(1, 4), ElementsAre(2, 3, 12, 13));
  EXPECT_THAT(TokensOf(2, 4), ElementsAre(4, 5, 10, 11));
  EXPECT_THAT(TokensOf(3, 4), ElementsAre(6, 7, 8, 9));
}

// Reference G14.3: 4 ranks.
TEST(ContextSlicesTest, ChunksThatArriveByRankFindTheirPlace) {
  EXPECT_THAT(ArrivalOfChunk(4), ElementsAre(0, 2, 4, 6, 7, 5, 3, 1));
  EXPECT_THAT(ChunkOfArrival(4), ElementsAre(0, 7, 1, 6, 2, 5, 3, 4));
}

TEST(ContextSlicesTest, TheTablesSayWhereTheSlicesLie) {
  for (const int size : {1, 2, 3, 8}) {
    std::vector<at::Tensor> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(SliceForContext(at::arange(4 * size), 0, {rank, size}));
    }
    const std::vector<at::Tensor> arrived = at::cat(ranks).chunk(2 * size);
    std::vector<at::Tensor> sequence;
    for (const int64_t place : ArrivalOfChunk(size)) sequence.push_back(arrived[place]);
    EXPECT_TRUE(at::equal(at::cat(sequence), at::arange(4 * size))) << size;
    const std::vector<int64_t> chunks = ChunkOfArrival(size);
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(ArrivalOfChunk(size)[chunks[i]], static_cast<int64_t>(i));
    }
  }
}

TEST(ContextSlicesTest, ABatchIsSlicedByTokensAndItsMaskByQueries) {
  const at::Tensor ids = at::arange(16).view({2, 8});
  Batch whole{
      .tokens = ids, .labels = ids + 1, .loss_mask = ids.to(at::kFloat), .position_ids = ids % 8};
  EXPECT_FALSE(SliceForContext(whole, {1, 2}).attention_mask.defined());
  whole.attention_mask = at::arange(128).view({2, 1, 8, 8});
  const Batch own = SliceForContext(whole, {1, 2});
  const at::Tensor rows = at::arange(2, 6);  // chunks 1 and 2 of 2 tokens each
  EXPECT_TRUE(at::equal(own.tokens, ids.index_select(1, rows)));
  EXPECT_TRUE(at::equal(own.labels, own.tokens + 1));
  EXPECT_TRUE(at::equal(own.loss_mask, own.tokens.to(at::kFloat)));
  EXPECT_TRUE(at::equal(own.position_ids, own.tokens % 8));
  EXPECT_TRUE(at::equal(own.attention_mask, whole.attention_mask.index_select(2, rows)));
  // One rank has the batch as it is.
  EXPECT_TRUE(SliceForContext(whole, {0, 1}).tokens.is_same(whole.tokens));
  // A stage that looks at no data has empty batches.
  EXPECT_FALSE(SliceForContext(Batch(), {0, 2}).tokens.defined());
}

}  // namespace
}  // namespace muster
