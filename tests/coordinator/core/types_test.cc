#include "coordinator/core/types.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(CompressRanksTest, RunsBecomeRanges) {
  EXPECT_EQ(CompressRanks({}), "");
  EXPECT_EQ(CompressRanks({3}), "3");
  EXPECT_EQ(CompressRanks({7, 0, 2, 1}), "0-2,7");
  EXPECT_EQ(CompressRanks({1, 1, 2}), "1-2");
  EXPECT_EQ(CompressRanks({0, 2, 4, 6}, 2), "0,2,...");
}

}  // namespace
}  // namespace muster
