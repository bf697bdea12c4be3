#include "common/schedule/loss_scaler.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

const LossScalerOptions kSmall{
    .dynamic = true, .initial_scale = 16, .growth_interval = 3, .hysteresis = 2};

TEST(LossScalerTest, TraceG7_4) {
  struct Row {
    bool found_inf;
    LossScalerState expected;
  };
  const Row rows[] = {
      {false, {16, 1, 2}}, {false, {16, 2, 2}}, {false, {32, 0, 2}}, {true, {32, 0, 1}},
      {false, {32, 1, 1}}, {true, {16, 0, 0}},  {true, {8, 0, -1}},  {false, {8, 1, -1}},
      {false, {8, 2, -1}}, {false, {16, 0, 2}}, {true, {16, 0, 1}},  {true, {8, 0, 0}},
      {true, {4, 0, -1}},  {true, {2, 0, -2}},  {true, {1, 0, -3}},  {true, {1, 0, -4}},
  };
  auto scaler = LossScaler::Create(kSmall);
  ASSERT_TRUE(scaler.ok());
  int step = 0;
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G7.4 step " << step++);
    scaler->Update(row.found_inf);
    EXPECT_EQ(scaler->state(), row.expected);
  }
}

TEST(LossScalerTest, ConstantNeverChanges) {
  auto scaler = LossScaler::Create({.initial_scale = 8});
  ASSERT_TRUE(scaler.ok());
  for (int i = 0; i < 5; ++i) scaler->Update(true);
  EXPECT_EQ(scaler->scale(), 8);
  scaler->Load({.scale = 3});
  EXPECT_EQ(scaler->scale(), 8);
}

TEST(LossScalerTest, ResumesFromItsState) {
  auto before = LossScaler::Create(kSmall), after = LossScaler::Create(kSmall);
  for (bool found : {false, true, true, false}) before->Update(found);
  after->Load(before->state());
  for (bool found : {true, false, false, false}) {
    before->Update(found);
    after->Update(found);
    EXPECT_EQ(after->state(), before->state());
  }
}

TEST(LossScalerTest, BadOptions) {
  auto ok = [](LossScalerOptions options) { return LossScaler::Create(options).ok(); };
  EXPECT_TRUE(ok(kSmall));
  EXPECT_FALSE(ok({.initial_scale = 0}));
  EXPECT_FALSE(ok({.dynamic = true, .initial_scale = 16, .min_scale = 0}));
  EXPECT_FALSE(ok({.dynamic = true, .initial_scale = 16, .min_scale = 32}));
  EXPECT_FALSE(ok({.dynamic = true, .growth_factor = 1}));
  EXPECT_FALSE(ok({.dynamic = true, .backoff_factor = 1}));
  EXPECT_FALSE(ok({.dynamic = true, .growth_interval = 0}));
  EXPECT_FALSE(ok({.dynamic = true, .hysteresis = 0}));
}

}  // namespace
}  // namespace muster
