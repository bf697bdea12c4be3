// The boxes of tensor-parallel shards: they cover the whole once, in Megatron's order.

#include "worker/parallel/parameter_slices.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::ElementsAre;

// The shard of `rank` among `tp` of a tensor of `shape` split along `dim`.
Parameter Shard(std::vector<int64_t> shape, int dim, int stride, int tp, int rank) {
  Parameter parameter;
  parameter.name = "shard";
  parameter.global_shape = shape;
  parameter.global_offset.assign(shape.size(), 0);
  if (dim >= 0) {
    parameter.tensor_model_parallel = true;
    parameter.partition_dim = dim;
    parameter.partition_stride = stride;
    parameter.global_offset[dim] = shape[dim] / stride / tp * rank;
    shape[dim] /= tp;
  }
  parameter.data = at::zeros(shape, at::kDouble);
  return parameter;
}

TEST(ParameterSlicesTest, SwigluShardHoldsItsPartOfGateThenOfUp) {
  const Parameter shard = Shard({16, 3}, 0, /*stride=*/2, /*tp=*/4, /*rank=*/1);
  const std::vector<ParameterSlice> slices = ParameterSlices(shard);
  ASSERT_EQ(slices.size(), 2);
  EXPECT_THAT(slices[0].local_begin, ElementsAre(0, 0));
  EXPECT_THAT(slices[0].size, ElementsAre(2, 3));
  EXPECT_THAT(slices[0].global_offset, ElementsAre(2, 0));
  EXPECT_THAT(slices[1].local_begin, ElementsAre(2, 0));
  EXPECT_THAT(slices[1].size, ElementsAre(2, 3));
  EXPECT_THAT(slices[1].global_offset, ElementsAre(10, 0));
}

TEST(ParameterSlicesTest, OneBoxWithoutStrideOrSplit) {
  const std::vector<ParameterSlice> row = ParameterSlices(Shard({4, 6}, 1, 1, 3, 2));
  ASSERT_EQ(row.size(), 1);
  EXPECT_THAT(row[0].size, ElementsAre(4, 2));
  EXPECT_THAT(row[0].global_offset, ElementsAre(0, 4));
  const std::vector<ParameterSlice> replicated = ParameterSlices(Shard({5}, -1, 1, 3, 2));
  ASSERT_EQ(replicated.size(), 1);
  EXPECT_THAT(replicated[0].size, ElementsAre(5));
  EXPECT_THAT(replicated[0].global_offset, ElementsAre(0));
}

TEST(ParameterSlicesTest, ShardsOfAllRanksMakeTheWhole) {
  for (const int stride : {1, 2, 3}) {
    SCOPED_TRACE(stride);
    const at::Tensor whole = at::arange(24 * 5, at::kDouble).view({24, 5});
    at::Tensor joined = at::zeros_like(whole), times = at::zeros_like(whole);
    for (int rank = 0; rank < 4; ++rank) {
      const Parameter shard = Shard({24, 5}, 0, stride, 4, rank);
      const at::Tensor cut = ShardOf(whole, shard);
      EXPECT_EQ(cut.sizes(), shard.data.sizes());
      CopyShardInto(cut, shard, joined);
      at::Tensor once = at::zeros_like(whole);
      CopyShardInto(at::ones_like(cut), shard, once);
      times.add_(once);
    }
    EXPECT_TRUE(at::equal(joined, whole));
    EXPECT_TRUE(times.eq(1).all().item<bool>());
  }
}

}  // namespace
}  // namespace muster
