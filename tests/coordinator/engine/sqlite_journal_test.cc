#include "coordinator/engine/sqlite_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/engine/temp_folder.h"
#include "tests/support/memory_journal.h"

namespace muster {

void PrintTo(const DurableRecord& record, std::ostream* out) {
  *out << record.key << "=" << record.value.value_or("(erased)");
}
void PrintTo(const LedgerRow& row, std::ostream* out) {
  *out << row.job << "/" << static_cast<int>(row.kind) << "/" << row.index << "=" << row.value;
}

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DurableChanges Decision(std::vector<DurableRecord> records, std::vector<LedgerRow> ledger = {}) {
  return {.records = std::move(records),
          .ledger = std::move(ledger),
          .durability = Durability::kDecision};
}

LedgerRow Step(int64_t job, int64_t index) {
  return {job, LedgerKind::kStep, index, absl::StrCat("{\"step\":", index, "}")};
}

class SqliteJournalTest : public ::testing::Test {
 protected:
  SqliteJournalOptions Options() const {
    return {.path = folder_ / "journal.sqlite", .created_by = "test", .reserve_bytes = 1 << 16};
  }
  void Open() {
    journal_ = nullptr;
    auto journal = SqliteJournal::Open(Options());
    ASSERT_TRUE(journal.ok()) << journal.status();
    journal_ = *std::move(journal);
  }
  // What is said of the file with this SQL applied to it.
  absl::Status OpenAfter(const std::string& sql) {
    journal_ = nullptr;
    {
      auto db = SqliteDb::Open(folder_ / "journal.sqlite");
      EXPECT_TRUE(db.ok()) << db.status();
      const absl::Status done = (*db)->Exec(sql);
      EXPECT_TRUE(done.ok()) << done;
    }
    return SqliteJournal::Open(Options()).status();
  }
  void SetUp() override { Open(); }

  TempFolder folder_;
  std::unique_ptr<SqliteJournal> journal_;
};

TEST_F(SqliteJournalTest, ANewOneIsEmptyAndHasAnIdentity) {
  EXPECT_TRUE(journal_->created());
  EXPECT_EQ(journal_->coordinator_id().size(), 8u);
  const std::string id = journal_->coordinator_id();
  const auto state = journal_->Load(10);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->records, IsEmpty());
  EXPECT_THAT(state->ledger, IsEmpty());
  Open();
  EXPECT_FALSE(journal_->created());
  EXPECT_EQ(journal_->coordinator_id(), id);
}

TEST_F(SqliteJournalTest, TheLastValueOfAKeyIsLoadedAndErasedOnesAreNot) {
  ASSERT_TRUE(journal_->Write(Decision({{"b", "1"}, {"a", "{}"}, {"c", "3"}})).ok());
  ASSERT_TRUE(journal_->Write(Decision({{"b", "2"}, {"c", std::nullopt}})).ok());
  Open();
  EXPECT_THAT(journal_->Load(10)->records,
              ElementsAre(DurableRecord{"a", "{}"}, DurableRecord{"b", "2"}));
}

TEST_F(SqliteJournalTest, ValuesKeepEveryByte) {
  std::string bytes;
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  ASSERT_TRUE(journal_->Write(Decision({{"k", bytes}, {"empty", ""}})).ok());
  Open();
  EXPECT_THAT(journal_->Load(10)->records,
              ElementsAre(DurableRecord{"empty", ""}, DurableRecord{"k", bytes}));
}

TEST_F(SqliteJournalTest, LoadsTheNewestRowsOfEachJobAndKind) {
  std::vector<LedgerRow> rows;
  for (int64_t i = 1; i <= 5; ++i) {
    rows.push_back(Step(3, i));
    rows.push_back(Step(12, i));
  }
  rows.push_back({3, LedgerKind::kEvent, 1, "\"e\""});
  ASSERT_TRUE(journal_->Write({.ledger = rows}).ok());
  Open();
  EXPECT_THAT(journal_->Load(2)->ledger,
              ElementsAre(Step(3, 4), Step(3, 5), LedgerRow{3, LedgerKind::kEvent, 1, "\"e\""},
                          Step(12, 4), Step(12, 5)));
}

TEST_F(SqliteJournalTest, ReadsAnyRangeOfTheLedger) {
  for (int64_t i = 1; i <= 9; ++i) ASSERT_TRUE(journal_->Write({.ledger = {Step(3, i)}}).ok());
  EXPECT_THAT(*journal_->ReadLedger(3, LedgerKind::kStep, 4, 2),
              ElementsAre(Step(3, 4), Step(3, 5)));
  EXPECT_THAT(*journal_->ReadLedger(3, LedgerKind::kStep, 9, 2), ElementsAre(Step(3, 9)));
  EXPECT_THAT(*journal_->ReadLedger(3, LedgerKind::kEvent, 0, 2), IsEmpty());
  EXPECT_THAT(*journal_->ReadLedger(4, LedgerKind::kStep, 0, 2), IsEmpty());
}

TEST_F(SqliteJournalTest, AForgottenJobTakesItsRecordsAndLedgerAndNoOtherJobs) {
  ASSERT_TRUE(journal_
                  ->Write(Decision({{"job/1", "1"},
                                    {"job/1/rank/0", "2"},
                                    {"job/10", "3"},
                                    {"job/10/rank/0", "4"},
                                    {"job/2", "5"}},
                                   {Step(1, 1), Step(10, 1), Step(2, 1)}))
                  .ok());
  ASSERT_TRUE(journal_->Write({.forgotten_jobs = {1}}).ok());
  const auto state = journal_->Load(10);
  EXPECT_THAT(state->records,
              ElementsAre(DurableRecord{"job/10", "3"}, DurableRecord{"job/10/rank/0", "4"},
                          DurableRecord{"job/2", "5"}));
  EXPECT_THAT(state->ledger, ElementsAre(Step(2, 1), Step(10, 1)));
}

TEST_F(SqliteJournalTest, ReportsAreSyncedLaterAndDecisionsAtOnce) {
  ASSERT_TRUE(journal_->Write({.ledger = {Step(1, 1)}}).ok());
  EXPECT_TRUE(journal_->unsynced());
  ASSERT_TRUE(journal_->Sync().ok());
  EXPECT_FALSE(journal_->unsynced());
  ASSERT_TRUE(journal_->Write({.ledger = {Step(1, 2)}}).ok());
  ASSERT_TRUE(journal_->Write(Decision({{"a", "1"}})).ok());
  EXPECT_FALSE(journal_->unsynced());
}

TEST_F(SqliteJournalTest, TheLogDoesNotGrowWithoutBound) {
  journal_ = nullptr;
  SqliteJournalOptions options = Options();
  options.log_limit_pages = 16;
  auto journal = SqliteJournal::Open(options);
  ASSERT_TRUE(journal.ok()) << journal.status();
  const std::string value(2'000, 'x');
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE((*journal)->Write({.records = {{absl::StrCat("k", i % 7), value}}}).ok());
  }
  EXPECT_LT(std::filesystem::file_size(folder_ / "journal.sqlite-wal"), 64u * 4096);
}

TEST_F(SqliteJournalTest, ASecondOneIsKeptOut) {
  const absl::Status second = SqliteJournal::Open(Options()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable) << second;
  EXPECT_THAT(std::string(second.message()),
              AllOf(HasSubstr("journal.sqlite"), HasSubstr("another process has it open")));
}

TEST_F(SqliteJournalTest, ANewerVersionIsRefused) {
  const absl::Status newer = OpenAfter("UPDATE meta SET value = '9' WHERE key = 'version'");
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition) << newer;
  EXPECT_THAT(std::string(newer.message()),
              AllOf(HasSubstr("journal.sqlite"), HasSubstr("version 9"), HasSubstr("up to 1"),
                    HasSubstr("start the newer one")));
}

TEST_F(SqliteJournalTest, AFileOfSomebodyElseIsRefused) {
  EXPECT_EQ(OpenAfter("UPDATE meta SET value = 'x' WHERE key = 'version'").code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(OpenAfter("DROP TABLE meta").ok());
  std::ofstream(folder_ / "journal.sqlite")
      << "this is no database, but a text that is long "
         "enough to be taken for the header of one, which it is not at all";
  const absl::Status text = SqliteJournal::Open(Options()).status();
  EXPECT_EQ(text.code(), absl::StatusCode::kDataLoss) << text;
  EXPECT_THAT(std::string(text.message()), AllOf(HasSubstr("journal.sqlite"), HasSubstr("backup")));
}

TEST_F(SqliteJournalTest, AFolderThatCannotBeWrittenSaysSo) {
  SqliteJournalOptions options = Options();
  options.path = folder_ / "nowhere/journal.sqlite";
  const absl::Status status = SqliteJournal::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nowhere/journal.sqlite"));
}

TEST(MergeChangesTest, TheLaterValueCountsAndRowsAdd) {
  DurableChanges changes{.records = {{"a", "1"}, {"b", "1"}}, .ledger = {Step(1, 1)}};
  MergeChanges(Decision({{"b", std::nullopt}, {"c", "2"}}, {Step(1, 2)}), &changes);
  MergeChanges({.records = {{"a", "3"}}, .forgotten_jobs = {4}}, &changes);
  EXPECT_THAT(changes.records,
              ElementsAre(DurableRecord{"a", "3"}, DurableRecord{"b", std::nullopt},
                          DurableRecord{"c", "2"}));
  EXPECT_THAT(changes.ledger, ElementsAre(Step(1, 1), Step(1, 2)));
  EXPECT_THAT(changes.forgotten_jobs, ElementsAre(4));
  EXPECT_EQ(changes.durability, Durability::kDecision);
}

// The same seeded writes into both give the same state, also across reopening.
TEST_F(SqliteJournalTest, EqualsTheOneInMemory) {
  MemoryJournal memory;
  uint64_t seed = 7;
  const auto draw = [&](uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % below;
  };
  for (int n = 0; n < 200; ++n) {
    DurableChanges changes;
    std::map<std::string, std::optional<std::string>> records;
    for (uint64_t i = draw(4); i > 0; --i) {
      const std::string key = absl::StrCat("job/", draw(5), draw(2) == 0 ? "" : "/rank/1");
      records[key] = draw(4) == 0 ? std::nullopt : std::optional(absl::StrCat(draw(1000)));
    }
    for (const auto& [key, value] : records) changes.records.push_back({key, value});
    for (uint64_t i = draw(3); i > 0; --i) {
      changes.ledger.push_back({static_cast<int64_t>(draw(5)), static_cast<LedgerKind>(1 + draw(4)),
                                n * 10 + static_cast<int64_t>(i), absl::StrCat(draw(1000))});
    }
    if (draw(20) == 0) changes.forgotten_jobs.push_back(static_cast<int64_t>(draw(5)));
    if (draw(10) == 0) changes.durability = Durability::kDecision;
    ASSERT_TRUE(journal_->Write(changes).ok());
    ASSERT_TRUE(memory.Write(changes).ok());
    if (n % 50 == 49) Open();
  }
  const auto mine = journal_->Load(3), expected = memory.Load(3);
  EXPECT_EQ(mine->records, expected->records);
  EXPECT_EQ(mine->ledger, expected->ledger);
  EXPECT_FALSE(mine->ledger.empty());
}

}  // namespace
}  // namespace muster
