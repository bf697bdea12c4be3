#include "common/schedule/lr_schedule.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// max 1, min 0.1, warm-up 10, decay 100.
LrScheduleOptions Base() {
  return {.max_lr = 1,
          .min_lr = 0.1,
          .lr_warmup_steps = 10,
          .lr_decay_steps = 100,
          .start_wd = 0.01,
          .end_wd = 0.01,
          .wd_incr_steps = 100};
}

LrSchedule Make(const LrScheduleOptions& options) {
  auto schedule = LrSchedule::Create(options);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *schedule;
}

void ExpectValues(const std::vector<int64_t>& steps, const std::vector<double>& expected,
                  const std::function<double(int64_t)>& value) {
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(value(steps[i]), expected[i], 2e-8) << "n = " << steps[i];
  }
}

TEST(LrScheduleTest, StylesG8_1) {
  struct Row {
    const char* name;
    LrDecayStyle style;
    std::vector<double> expected;
  };
  const std::vector<int64_t> steps = {0, 5, 10, 11, 55, 80, 90, 95, 100, 101};
  const Row rows[] = {
      {"constant", LrDecayStyle::kConstant, {0, .5, 1, 1, 1, 1, 1, 1, 1, 1}},
      {"linear", LrDecayStyle::kLinear, {0, .5, 1, .99, .55, .3, .2, .15, .1, .1}},
      {"cosine",
       LrDecayStyle::kCosine,
       {0, .5, 1, .99972587, .55, .20528, .12713832, .10683651, .1, .1}},
      {"inverse-square-root",
       LrDecayStyle::kInverseSquareRoot,
       {0, .5, 1, .95346259, .42640143, .35355339, .33333333, .32444284, .31622777, .1}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G8.1 " << row.name);
    EXPECT_EQ(*ParseLrDecayStyle(row.name), row.style);
    LrScheduleOptions options = Base();
    options.lr_decay_style = row.style;
    const LrSchedule schedule = Make(options);
    for (size_t i = 0; i < steps.size(); ++i) {
      // The table has eight digits, cosine at 80 five.
      const double tolerance = row.expected[i] == .20528 ? 5e-6 : 2e-8;
      EXPECT_NEAR(schedule.LrAt(steps[i]), row.expected[i], tolerance) << "n = " << steps[i];
    }
  }
}

TEST(LrScheduleTest, WsdG8_1) {
  struct Row {
    const char* name;
    WsdDecayStyle style;
    std::vector<double> expected;
  };
  const Row rows[] = {
      {"linear", WsdDecayStyle::kLinear, {.55, .325, .1, .1}},
      {"cosine", WsdDecayStyle::kCosine, {.55, .23180195, .1, .1}},
      {"exponential", WsdDecayStyle::kExponential, {.47279221, .2702864, .1, .1}},
      {"minus_sqrt", WsdDecayStyle::kMinusSqrt, {.3636039, .22057714, .1, .1}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G8.1 WSD " << row.name);
    EXPECT_EQ(*ParseWsdDecayStyle(row.name), row.style);
    LrScheduleOptions options = Base();
    options.lr_decay_style = LrDecayStyle::kWsd;
    options.wsd_decay_steps = 20;
    options.wsd_decay_style = row.style;
    const LrSchedule schedule = Make(options);
    ExpectValues({0, 5, 10, 11, 55, 80}, {0, .5, 1, 1, 1, 1},
                 [&](int64_t n) { return schedule.LrAt(n); });
    ExpectValues({90, 95, 100, 101}, row.expected, [&](int64_t n) { return schedule.LrAt(n); });
  }
}

TEST(LrScheduleTest, WarmupStartsAtInitG8_1) {
  LrScheduleOptions options = Base();
  options.init_lr = 0.2;
  const LrSchedule schedule = Make(options);
  ExpectValues({0, 5, 10}, {.2, .6, 1}, [&](int64_t n) { return schedule.LrAt(n); });
}

TEST(LrScheduleTest, WeightDecayG8_1) {
  struct Row {
    const char* name;
    WeightDecayStyle style;
    std::vector<double> expected;
  };
  const Row rows[] = {
      {"linear", WeightDecayStyle::kLinear, {.01, .0325, .055, .1, .1}},
      {"cosine", WeightDecayStyle::kCosine, {.01, .02318019, .055, .1, .1}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G8.1 weight decay " << row.name);
    EXPECT_EQ(*ParseWeightDecayStyle(row.name), row.style);
    LrScheduleOptions options = Base();
    options.start_wd = 0.01;
    options.end_wd = 0.1;
    options.wd_incr_style = row.style;
    const LrSchedule schedule = Make(options);
    ExpectValues({0, 25, 50, 100, 101}, row.expected,
                 [&](int64_t n) { return schedule.WeightDecayAt(n); });
    EXPECT_EQ(schedule.WeightDecayAt(50, {.wd_mult = 0}), 0);
    EXPECT_NEAR(schedule.WeightDecayAt(50, {.start_wd = 0.0, .end_wd = 1.0}), .5, 1e-15);
  }
  EXPECT_EQ(Make(Base()).WeightDecayAt(50), 0.01);
}

TEST(LrScheduleTest, NoWarmupStartsAtTheTop) {
  LrScheduleOptions options = Base();
  options.lr_warmup_steps = 0;
  EXPECT_EQ(Make(options).LrAt(0), 1);
  options.lr_decay_style = LrDecayStyle::kInverseSquareRoot;
  EXPECT_EQ(Make(options).LrAt(0), 1);
  EXPECT_EQ(Make(options).LrAt(4), 0.5);
}

TEST(LrScheduleTest, FractionalWarmup) {
  LrScheduleOptions options = Base();
  options.lr_warmup_steps = 2.5;
  const LrSchedule schedule = Make(options);
  EXPECT_DOUBLE_EQ(schedule.LrAt(1), 0.4);
  EXPECT_DOUBLE_EQ(schedule.LrAt(2), 0.8);
  EXPECT_LT(schedule.LrAt(3), 1);
}

TEST(LrScheduleTest, GroupsOverrideTheEnds) {
  const LrSchedule schedule = Make(Base());
  EXPECT_NEAR(schedule.LrAt(55, {.max_lr = 2.0, .min_lr = 0.0}), 1.0, 1e-15);
  EXPECT_NEAR(schedule.LrAt(5, {.max_lr = 2.0}), 1.0, 1e-15);
  EXPECT_NEAR(schedule.LrAt(55, {.lr_mult = 0.5}), 0.275, 1e-15);
}

TEST(LrScheduleTest, StepCountsSamples) {
  LrSchedule schedule = Make(Base());
  EXPECT_EQ(schedule.Lr(), 0);
  schedule.Step(5);
  EXPECT_EQ(schedule.Lr(), .5);
  schedule.Step(5);
  EXPECT_EQ(schedule.Lr(), 1);
  EXPECT_EQ(schedule.num_steps(), 10);
}

TEST(LrScheduleTest, BadOptions) {
  auto error = [](const std::function<void(LrScheduleOptions&)>& change) {
    LrScheduleOptions options = Base();
    change(options);
    return std::string(LrSchedule::Create(options).status().message());
  };
  EXPECT_THAT(error([](auto& o) { o.min_lr = -1; }), HasSubstr("min_lr=-1 must not be negative"));
  EXPECT_THAT(error([](auto& o) { o.max_lr = .05; }), HasSubstr("at least schedule.min_lr=0.1"));
  EXPECT_THAT(error([](auto& o) { o.max_lr = std::nan(""); }), HasSubstr("optimizer.lr=nan"));
  EXPECT_THAT(error([](auto& o) { o.init_lr = 2; }), HasSubstr("lr_warmup_init=2"));
  EXPECT_THAT(error([](auto& o) { o.lr_decay_steps = 0; }), HasSubstr("must be above 0"));
  EXPECT_THAT(error([](auto& o) { o.lr_warmup_steps = 100; }), HasSubstr("must be below"));
  EXPECT_THAT(error([](auto& o) { o.lr_decay_style = LrDecayStyle::kWsd; }), HasSubstr("WSD"));
  EXPECT_THAT(error([](auto& o) { o.start_wd = -1; }), HasSubstr("start_weight_decay=-1"));
  EXPECT_THAT(error([](auto& o) { o.end_wd = 0; }), HasSubstr("end_weight_decay=0"));
  EXPECT_THAT(error([](auto& o) { o.end_wd = 1; }), HasSubstr("\"constant\" needs"));
  EXPECT_THAT(error([](auto& o) {
                o.override_checkpoint = true;
                o.use_checkpoint = true;
              }),
              HasSubstr("contradict"));
  EXPECT_THAT(std::string(ParseLrDecayStyle("cubic").status().message()),
              HasSubstr("\"cubic\" must be one of constant, linear, cosine"));
}

TEST(LrScheduleLoadTest, EqualValuesResume) {
  LrSchedule before = Make(Base());
  before.Step(37);
  LrSchedule after = Make(Base());
  ASSERT_TRUE(after.Load(before.State(), 37).ok());
  EXPECT_EQ(after.num_steps(), 37);
  EXPECT_EQ(after.Lr(), before.Lr());
  EXPECT_EQ(after.State(), before.State());
}

TEST(LrScheduleLoadTest, DifferentValuesAreRefusedByName) {
  struct Row {
    const char* name;
    std::function<void(LrScheduleState&)> change;
  };
  const Row rows[] = {
      {"max_lr", [](auto& s) { s.max_lr = 2; }},
      {"min_lr", [](auto& s) { s.min_lr = 0; }},
      {"lr_warmup_steps", [](auto& s) { s.lr_warmup_steps = 11; }},
      {"lr_decay_steps", [](auto& s) { s.lr_decay_steps = 101; }},
      {"lr_decay_style", [](auto& s) { s.lr_decay_style = LrDecayStyle::kCosine; }},
      {"start_wd", [](auto& s) { s.start_wd = 0; }},
      {"end_wd", [](auto& s) { s.end_wd = 1; }},
      {"wd_incr_steps", [](auto& s) { s.wd_incr_steps = 1; }},
      {"wd_incr_style", [](auto& s) { s.wd_incr_style = WeightDecayStyle::kCosine; }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    LrSchedule schedule = Make(Base());
    LrScheduleState state = schedule.State();
    state.num_steps = 9;
    row.change(state);
    const absl::Status status = schedule.Load(state, 9);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("has ") + row.name + "="));
    EXPECT_EQ(schedule.num_steps(), 0) << "nothing has changed";
  }
}

TEST(LrScheduleLoadTest, OverrideKeepsTheSpecAndTakesTheConsumedSamples) {
  LrScheduleOptions options = Base();
  options.override_checkpoint = true;
  LrSchedule schedule = Make(options);
  LrScheduleState state = schedule.State();
  state.max_lr = 5;
  state.num_steps = 9;
  ASSERT_TRUE(schedule.Load(state, 50).ok());
  EXPECT_EQ(schedule.State().max_lr, 1);
  EXPECT_EQ(schedule.num_steps(), 50);
}

TEST(LrScheduleLoadTest, UseCheckpointTakesItsValues) {
  LrScheduleOptions options = Base();
  options.use_checkpoint = true;
  LrSchedule schedule = Make(options);
  LrScheduleState state = schedule.State();
  state.max_lr = 5;
  state.num_steps = 10;
  ASSERT_TRUE(schedule.Load(state, 50).ok());
  EXPECT_EQ(schedule.Lr(), 5);
  EXPECT_EQ(schedule.num_steps(), 10);
  state.lr_decay_steps = -1;  // damaged
  EXPECT_FALSE(schedule.Load(state, 50).ok());
  EXPECT_EQ(schedule.Lr(), 5);
}

}  // namespace
}  // namespace muster
