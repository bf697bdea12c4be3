#include "common/schedule/microbatches.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

struct Expected {
  int64_t consumed, global, running, num_microbatches;
};

void ExpectSizes(const MicrobatchOptions& options, const std::vector<Expected>& rows) {
  auto calculator = MicrobatchCalculator::Create(options);
  ASSERT_TRUE(calculator.ok()) << calculator.status();
  for (const Expected& row : rows) {
    SCOPED_TRACE(testing::Message() << "consumed " << row.consumed);
    auto sizes = calculator->CheckedSizes(row.consumed);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    EXPECT_EQ(*sizes, (BatchSizes{row.global, row.running, row.num_microbatches}));
    EXPECT_EQ(calculator->Sizes(row.consumed), *sizes);
  }
}

TEST(MicrobatchesTest, RampupG9_1) {
  ExpectSizes({.global_batch_size = 32,
               .micro_batch_size = 1,
               .data_parallel_size = 2,
               .rampup = BatchRampup{8, 8, 300}},
              {{0, 8, 8, 4},
               {99, 8, 8, 4},
               {100, 16, 16, 8},
               {199, 16, 16, 8},
               {200, 24, 24, 12},
               {299, 24, 24, 12},
               {300, 32, 32, 16},
               {301, 32, 32, 16}});
}

TEST(MicrobatchesTest, RampupWithDecreaseG9_1) {
  ExpectSizes({.global_batch_size = 32,
               .micro_batch_size = 1,
               .data_parallel_size = 3,
               .rampup = BatchRampup{8, 8, 300},
               .decrease_batch_size_if_needed = true},
              {{0, 8, 6, 2},
               {99, 8, 6, 2},
               {100, 16, 15, 5},
               {199, 16, 15, 5},
               {200, 24, 24, 8},
               {299, 24, 24, 8},
               {300, 32, 30, 10},
               {301, 32, 30, 10}});
}

TEST(MicrobatchesTest, ConstantG9_2) {
  ExpectSizes({.global_batch_size = 32, .micro_batch_size = 2, .data_parallel_size = 4},
              {{0, 32, 32, 4}, {1000000, 32, 32, 4}});
  // 30 with micro 2, dp 4.
  EXPECT_THAT(
      std::string(MicrobatchCalculator::Create(
                      {.global_batch_size = 30, .micro_batch_size = 2, .data_parallel_size = 4})
                      .status()
                      .message()),
      HasSubstr("global_batch_size=30 at 0 consumed samples must be a multiple of "
                "training.micro_batch_size=2 x data parallel size 4 = 8"));
  ExpectSizes({.global_batch_size = 30,
               .micro_batch_size = 2,
               .data_parallel_size = 4,
               .decrease_batch_size_if_needed = true},
              {{0, 30, 24, 3}});
  // 6 with micro 2, dp 4, decreased: no microbatch is left.
  EXPECT_THAT(std::string(MicrobatchCalculator::Create({.global_batch_size = 6,
                                                        .micro_batch_size = 2,
                                                        .data_parallel_size = 4,
                                                        .decrease_batch_size_if_needed = true})
                              .status()
                              .message()),
              HasSubstr("must be at least"));
}

TEST(MicrobatchesTest, RampupThatDoesNotDivideIsFoundWhenItIsReached) {
  auto calculator = MicrobatchCalculator::Create({.global_batch_size = 32,
                                                  .micro_batch_size = 2,
                                                  .data_parallel_size = 4,
                                                  .rampup = BatchRampup{8, 4, 300}});
  ASSERT_TRUE(calculator.ok());
  EXPECT_TRUE(calculator->CheckedSizes(0).ok());
  EXPECT_FALSE(calculator->CheckedSizes(60).ok());
  EXPECT_EQ(calculator->Sizes(60), (BatchSizes{12, 12, 1}));
}

TEST(MicrobatchesTest, BadOptions) {
  auto error = [](const MicrobatchOptions& options) {
    return std::string(MicrobatchCalculator::Create(options).status().message());
  };
  auto rampup = [&](BatchRampup r) {
    return error({.global_batch_size = 32, .micro_batch_size = 1, .rampup = r});
  };
  EXPECT_THAT(error({.global_batch_size = 0, .micro_batch_size = 1}), HasSubstr("at least 1"));
  EXPECT_THAT(error({.global_batch_size = 8, .micro_batch_size = -1}), HasSubstr("at least 1"));
  EXPECT_THAT(rampup({0, 8, 300}), HasSubstr("the start must be at least 1"));
  EXPECT_THAT(rampup({8, 0, 300}), HasSubstr("the increment must be at least 1"));
  EXPECT_THAT(rampup({8, 8, 0}), HasSubstr("number of samples"));
  EXPECT_THAT(rampup({32, 8, 300}), HasSubstr("below the global batch size"));
  EXPECT_THAT(rampup({40, 8, 300}), HasSubstr("below the global batch size"));
  EXPECT_THAT(rampup({8, 7, 300}), HasSubstr("must divide"));
}

}  // namespace
}  // namespace muster
