#include "common/schedule/exit_policy.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

const ExitOptions kAll{
    .can_save = true, .save_interval = 10, .exit_interval = 30, .exit_duration_in_mins = 60.0};

TEST(ExitPolicyTest, Table) {
  ExitOptions no_save = kAll;
  no_save.can_save = false;
  struct Row {
    const char* name;
    ExitOptions options;
    ExitInputs inputs;
    ExitDecision expected;
  };
  const Row rows[] = {
      {"nothing", kAll, {.iteration = 7}, {false, false, ""}},
      {"save interval", kAll, {.iteration = 20}, {true, false, "save_interval 10"}},
      {"signal comes first", kAll, {.iteration = 30, .signal = true}, {true, true, "exit signal"}},
      {"signal without a place to save",
       no_save,
       {.iteration = 7, .signal = true},
       {false, true, "exit signal"}},
      {"duration",
       kAll,
       {.iteration = 7, .elapsed_mins = 60.5},
       {true, true, "exit_duration_in_mins 60"}},
      {"duration reached but not passed",
       kAll,
       {.iteration = 7, .elapsed_mins = 60.0},
       {false, false, ""}},
      {"duration agreed as a wish",
       kAll,
       {.iteration = 7, .duration_passed = true},
       {true, true, "exit_duration_in_mins 60"}},
      {"duration is not set",
       {.can_save = true},
       {.iteration = 7, .duration_passed = true},
       {false, false, ""}},
      {"duration before exit interval",
       kAll,
       {.iteration = 30, .elapsed_mins = 61.0},
       {true, true, "exit_duration_in_mins 60"}},
      {"exit interval", kAll, {.iteration = 30}, {true, true, "exit_interval 30"}},
      {"exit interval without a place to save",
       no_save,
       {.iteration = 30},
       {false, true, "exit_interval 30"}},
      {"checkpoint directive",
       kAll,
       {.iteration = 7, .checkpoint_requested = "directive 2"},
       {true, false, "directive 2"}},
      {"checkpoint directive without a place to save",
       no_save,
       {.iteration = 7, .checkpoint_requested = "directive 2"},
       {false, false, ""}},
      {"stop directive saves nothing",
       kAll,
       {.iteration = 7, .stop_requested = "cancel"},
       {false, true, "cancel"}},
      {"stop directive at a save interval",
       kAll,
       {.iteration = 20, .stop_requested = "cancel"},
       {true, true, "cancel"}},
      {"checkpoint and stop",
       kAll,
       {.iteration = 7, .checkpoint_and_stop_requested = "ctrl-C"},
       {true, true, "ctrl-C"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const ExitDecision decision = DecideExit(row.options, row.inputs);
    EXPECT_EQ(decision.save, row.expected.save);
    EXPECT_EQ(decision.exit, row.expected.exit);
    EXPECT_EQ(decision.reason, row.expected.reason);
  }
}

TEST(ExitPolicyTest, SavesAfterTrainingWhatTheIntervalDidNot) {
  EXPECT_TRUE(SaveAfterTraining(kAll, 105));
  EXPECT_FALSE(SaveAfterTraining(kAll, 100));
  EXPECT_FALSE(SaveAfterTraining(kAll, 0));
  EXPECT_FALSE(SaveAfterTraining({.can_save = false, .save_interval = 10}, 105));
  EXPECT_TRUE(SaveAfterTraining({.can_save = true}, 100));
}

}  // namespace
}  // namespace muster
