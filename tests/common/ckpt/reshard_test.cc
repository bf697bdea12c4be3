#include "common/ckpt/reshard.h"

#include <random>

#include <gtest/gtest.h>

namespace muster {
namespace {

// Global row-major indices of the elements that a slice holds, in its own order: the dumb version.
std::vector<int64_t> ElementsOf(const SliceBox& box, const std::vector<int64_t>& global_shape) {
  std::vector<int64_t> elements;
  for (int64_t flat = box.flat_begin; flat < box.flat_end; ++flat) {
    int64_t rest = flat;
    int64_t stride = 1;
    int64_t index = 0;
    for (size_t d = global_shape.size(); d-- > 0;) {
      index += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= global_shape[d];
    }
    elements.push_back(index);
  }
  return elements;
}

SliceBox RandomSlice(const std::vector<int64_t>& shape, std::mt19937& random) {
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
  };
  std::vector<int64_t> offset, extent;
  for (const int64_t whole : shape) {
    offset.push_back(random() % 3 == 0 ? 0 : below(whole));
    extent.push_back(random() % 3 == 0 ? whole - offset.back() : 1 + below(whole - offset.back()));
  }
  SliceBox box = WholeBox(offset, extent);
  if (random() % 2 == 0) {
    box.flat_begin = below(box.flat_end + 1);
    box.flat_end = box.flat_begin + below(box.flat_end - box.flat_begin + 1);
  }
  return box;
}

TEST(ReshardTest, RandomSlicesCopyExactlyTheCommonElements) {
  std::mt19937 random(20);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> shape;
    for (uint32_t d = random() % 4; d > 0; --d) shape.push_back(1 + random() % 4);
    const SliceBox source = RandomSlice(shape, random);
    const SliceBox target = RandomSlice(shape, random);
    const std::vector<int64_t> from = ElementsOf(source, shape);
    const std::vector<int64_t> wanted = ElementsOf(target, shape);
    std::vector<int64_t> got(wanted.size(), -1);
    const int64_t copied =
        ForEachCommonRun(source, target, [&](int64_t s, int64_t t, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_EQ(got.at(static_cast<size_t>(t + i)), -1) << "written twice";
            got[static_cast<size_t>(t + i)] = from.at(static_cast<size_t>(s + i));
          }
        });
    int64_t expected = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bool common = std::find(from.begin(), from.end(), wanted[i]) != from.end();
      expected += common;
      ASSERT_EQ(got[i], common ? wanted[i] : -1) << "round " << round;
    }
    ASSERT_EQ(copied, expected);
  }
}

TEST(ReshardTest, WholeTensorIsOneRun) {
  int runs = 0;
  const SliceBox box = WholeBox({0, 0, 0}, {3, 4, 5});
  EXPECT_EQ(ForEachCommonRun(box, box,
                             [&](int64_t, int64_t, int64_t count) {
                               ++runs;
                               EXPECT_EQ(count, 60);
                             }),
            60);
  EXPECT_EQ(runs, 1);
}

TEST(ReshardTest, RowShardsOfAMatrixAreOneRunEach) {
  int runs = 0;
  ForEachCommonRun(WholeBox({0, 0}, {8, 5}), WholeBox({4, 0}, {4, 5}),
                   [&](int64_t source, int64_t target, int64_t count) {
                     ++runs;
                     EXPECT_EQ(source, 20);
                     EXPECT_EQ(target, 0);
                     EXPECT_EQ(count, 20);
                   });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace muster
