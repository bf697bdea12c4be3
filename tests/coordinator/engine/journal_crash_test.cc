// The coordinator dies at EVERY write of a scripted life, once before and once after the commit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/coordinator/engine/scripted_life.h"

namespace muster {
namespace {

// What a life comes to: all records, without how often something changed on the way and how many
// samples of a phase's length were taken (one that a restart cuts in two gives none).
std::map<std::string, nlohmann::json> EndOf(const Coordinator& core) {
  std::map<std::string, nlohmann::json> end;
  for (const DurableRecord& record : core.SaveAll().records) {
    nlohmann::json value = nlohmann::json::parse(*record.value);
    for (const char* field : {"version", "phase_samples", "step_lengths"}) {
      if (value.is_object()) value.erase(field);
    }
    end[record.key] = value;
  }
  return end;
}

TEST(JournalCrashTest, TheScriptLeadsThroughWhatItIsMeantTo) {
  ScriptedLife life;
  life.Run();
  ASSERT_FALSE(life.crashed());
  const Coordinator& core = life.core();
  ASSERT_EQ(core.jobs().size(), 3u);
  EXPECT_EQ(core.FindJob("job-1"), nullptr) << "forgotten";
  EXPECT_EQ(core.FindJob("job-2")->state(), JobState::kCancelled);
  EXPECT_EQ(core.FindJob("job-3")->state(), JobState::kCancelled);
  EXPECT_EQ(core.FindJob("job-4")->state(), JobState::kFailed);
  EXPECT_EQ(core.FindJob("job-4")->cause()->signal, 9);
  EXPECT_GT(life.num_writes(), 30);
}

TEST(JournalCrashTest, AtEveryWriteNothingIsLostOrTakenBackAndTheEndIsTheSame) {
  ScriptedLife quiet;
  quiet.Run();
  const auto expected = EndOf(quiet.core());
  const auto expected_rows = quiet.Ledger();
  const int64_t num_writes = quiet.num_writes();
  for (const auto moment : {FaultyJournal::Moment::kBefore, FaultyJournal::Moment::kAfter}) {
    for (int64_t write = 0; write < num_writes; ++write) {
      SCOPED_TRACE(absl::StrCat("write ", write, ", ",
                                moment == FaultyJournal::Moment::kBefore ? "before" : "after"));
      ScriptedLife life;
      life.CrashAt(write, moment);
      life.Run();
      ASSERT_TRUE(life.crashed());
      EXPECT_EQ(EndOf(life.core()), expected);
      EXPECT_EQ(life.Ledger(), expected_rows);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace muster
