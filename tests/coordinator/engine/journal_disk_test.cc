// Disks that are full, that fail, and that lose power.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "coordinator/engine/sqlite_journal.h"
#include "tests/coordinator/engine/faulty_vfs.h"
#include "tests/coordinator/engine/temp_folder.h"
#include "tests/support/memory_journal.h"

namespace muster {
namespace {

class JournalDiskTest : public ::testing::Test {
 protected:
  std::unique_ptr<SqliteJournal> Open(const std::string& folder, int64_t reserve = 0,
                                      int64_t tidy_pages = 512) {
    auto journal = SqliteJournal::Open({.path = folder + "/journal.sqlite",
                                        .reserve_bytes = reserve,
                                        .tidy_pages = tidy_pages,
                                        .vfs = vfs_.name()});
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  // As much as to need pages of both tables.
  static DurableChanges Changes(int64_t n, Durability durability) {
    DurableChanges changes{.durability = durability};
    for (int64_t i = 0; i < 6; ++i) {
      changes.records.push_back(
          {absl::StrCat("job/", (n + i) % 11), std::string(900, 'a' + n % 26)});
      changes.ledger.push_back({n % 3, LedgerKind::kStep, 10 * n + i, std::string(700, 'r')});
    }
    return changes;
  }
  static void ExpectSame(Journal* journal, Journal* expected) {
    const auto state = journal->Load(1'000'000), wanted = expected->Load(1'000'000);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->records, wanted->records);
    EXPECT_EQ(state->ledger, wanted->ledger);
  }
  void EveryFailure(int code, absl::StatusCode expected) {
    int failures = 0;
    for (int64_t after = 0;; ++after) {
      SCOPED_TRACE(after);
      TempFolder folder;
      const auto journal = Open(folder.path());
      MemoryJournal memory;
      for (int64_t n = 1; n <= 3; ++n) {
        ASSERT_TRUE(journal->Write(Changes(n, Durability::kDecision)).ok());
        ASSERT_TRUE(memory.Write(Changes(n, Durability::kDecision)).ok());
      }
      vfs_.FailWrite(after, code);
      const absl::Status status = journal->Write(Changes(4, Durability::kDecision));
      vfs_.FailWrite(-1, SQLITE_OK);
      if (status.ok()) break;
      ++failures;
      EXPECT_EQ(status.code(), expected) << status;
      ExpectSame(journal.get(), &memory);
      ASSERT_TRUE(journal->Write(Changes(4, Durability::kDecision)).ok());
      ASSERT_TRUE(memory.Write(Changes(4, Durability::kDecision)).ok());
      ExpectSame(journal.get(), &memory);
    }
    EXPECT_GT(failures, 5);
  }
  FaultyVfs vfs_;
};

TEST_F(JournalDiskTest, AFullDiskAtAnyWriteChangesNothing) {
  EveryFailure(SQLITE_FULL, absl::StatusCode::kResourceExhausted);
}

TEST_F(JournalDiskTest, AnErrorAtAnyWriteChangesNothing) {
  EveryFailure(SQLITE_IOERR_WRITE, absl::StatusCode::kUnavailable);
}

TEST_F(JournalDiskTest, ASyncThatFailsTakesTheDecisionBack) {
  TempFolder folder;
  const auto journal = Open(folder.path());
  MemoryJournal memory;
  ASSERT_TRUE(journal->Write(Changes(1, Durability::kDecision)).ok());
  ASSERT_TRUE(memory.Write(Changes(1, Durability::kDecision)).ok());
  vfs_.FailNextSync();
  EXPECT_EQ(journal->Write(Changes(2, Durability::kDecision)).code(),
            absl::StatusCode::kUnavailable);
  ExpectSame(journal.get(), &memory);
  EXPECT_TRUE(journal->Write(Changes(2, Durability::kDecision)).ok());
}

TEST_F(JournalDiskTest, TheReserveIsGivenBackOnAFullDiskAndTakenAgain) {
  TempFolder folder;
  const std::string reserve = folder / "journal.sqlite.reserve";
  const auto journal = Open(folder.path(), 1 << 16);
  ASSERT_TRUE(std::filesystem::exists(reserve));
  EXPECT_EQ(std::filesystem::file_size(reserve), 1u << 16);
  vfs_.FullWhileThereIs(reserve);
  EXPECT_TRUE(journal->Write(Changes(1, Durability::kDecision)).ok());
  EXPECT_FALSE(std::filesystem::exists(reserve));
  EXPECT_TRUE(journal->Maintain().ok()) << "this disk has room";
  EXPECT_TRUE(std::filesystem::exists(reserve));
}

TEST_F(JournalDiskTest, APowerCutLosesNoDecisionAndNothingThatWasSynced) {
  TempFolder folder, synced;
  vfs_.KeepSyncedIn(synced.path());
  const auto journal = Open(folder.path(), 0, /*tidy_pages=*/20);
  MemoryJournal all;
  std::mt19937 random(11);
  for (int64_t n = 1; n <= 120; ++n) {
    const bool decision = random() % 4 == 0;
    const auto durability = decision ? Durability::kDecision : Durability::kReport;
    ASSERT_TRUE(journal->Write(Changes(n, durability)).ok());
    ASSERT_TRUE(all.Write(Changes(n, durability)).ok());
    const bool sync = random() % 7 == 0;
    const absl::Status done = sync ? journal->Sync() : absl::OkStatus();
    ASSERT_TRUE(done.ok()) << done;
    const absl::Status tidied = random() % 5 == 0 ? journal->Maintain() : absl::OkStatus();
    ASSERT_TRUE(tidied.ok()) << tidied;
    if (!decision && !sync) continue;
    // The power goes: only what was synced is there. Whole transactions, the last one among them.
    TempFolder after;
    std::filesystem::copy(synced.path(), after.path());
    SCOPED_TRACE(n);
    auto opened = SqliteJournal::Open({.path = after / "journal.sqlite", .reserve_bytes = 0});
    ASSERT_TRUE(opened.ok()) << opened.status();
    ExpectSame(opened->get(), &all);
  }
}

}  // namespace
}  // namespace muster
