// A journal that version 1 wrote, as text. Whatever the code has become since: it must read it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "coordinator/engine/sqlite_journal.h"
#include "tests/coordinator/engine/temp_folder.h"

namespace muster {
namespace {

TEST(JournalGoldenTest, VersionOneIsReadAndGoesOn) {
  std::ostringstream sql;
  sql << std::ifstream(MUSTER_SOURCE_DIR "/tests/golden/journal_v1.sql").rdbuf();
  ASSERT_FALSE(sql.str().empty());
  TempFolder folder;
  const std::string path = folder / "journal.sqlite";
  {
    auto db = SqliteDb::Open(path);
    ASSERT_TRUE(db.ok()) << db.status();
    const absl::Status loaded = (*db)->Exec(sql.str());
    ASSERT_TRUE(loaded.ok()) << loaded;
  }
  auto journal = SqliteJournal::Open({.path = path, .reserve_bytes = 0});
  ASSERT_TRUE(journal.ok()) << journal.status();
  const auto state = (*journal)->Load(1'000);
  ASSERT_TRUE(state.ok()) << state.status();
  Coordinator core({});
  const absl::Time now = absl::FromUnixSeconds(1'700'000'010);
  const absl::Status restored = core.Restore(*state, now);
  ASSERT_TRUE(restored.ok()) << restored;
  EXPECT_TRUE(InvariantChecker().Check(core).empty());

  ASSERT_EQ(core.jobs().size(), 3u);
  const JobMachine& first = *core.FindJob("job-1");
  EXPECT_EQ(first.state(), JobState::kRunning);
  EXPECT_EQ(first.epoch(), 1);
  EXPECT_EQ(first.iteration(), 5);
  EXPECT_EQ(first.unique_id(), "abcd");
  EXPECT_EQ(first.ranks()[1].worker, "n1/1");
  EXPECT_EQ(first.directives().last(), 1);
  ASSERT_EQ(first.history().steps().size(), 5u);
  EXPECT_EQ(first.history().steps().newest().value.step.lm_loss, 0.2);
  EXPECT_EQ(first.history().checkpoints().size(), 1u);
  EXPECT_EQ(first.history().evaluations().size(), 1u);
  EXPECT_EQ(core.FindJob("job-2")->state(), JobState::kCancelled);
  EXPECT_EQ(core.FindJob("job-3")->reason(), "cancelled: enough");
  ASSERT_NE(core.membership().FindAgent("incarnation-two"), nullptr);

  // The agent comes back and its trainers end, as if nothing had been.
  ASSERT_TRUE(core.Handle(OpenStream{"incarnation-one", 1}, now).status.ok());
  const int64_t batch = core.membership().FindAgent("incarnation-one")->reports_through + 1;
  const Outcome done =
      core.Handle(ReportBatch{1,
                              batch,
                              {{{"n1/0", "job-1", 1, 0}, DoneMessage{1, 0, "trained"}},
                               {{"n1/1", "job-1", 1, 1}, DoneMessage{1, 0, "trained"}}}},
                  now);
  EXPECT_TRUE(done.status.ok()) << done.status;
  EXPECT_EQ(first.state(), JobState::kCompleted);
  EXPECT_TRUE((*journal)->Write(core.TakeChanges()).ok());
}

}  // namespace
}  // namespace muster
