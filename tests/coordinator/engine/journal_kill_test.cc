// A process that writes transactions is killed (SIGKILL) at drawn points: whatever it had
// acknowledged is there, whole, and what it had not is there whole or not at all.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/engine/sqlite_journal.h"
#include "tests/coordinator/engine/temp_folder.h"

namespace muster {
namespace {

SqliteJournalOptions OptionsIn(const TempFolder& folder) {
  // A small limit, so that kills also meet the log on its way into the file.
  return {.path = folder / "journal.sqlite",
          .reserve_bytes = 1 << 16,
          .tidy_pages = 8,
          .log_limit_pages = 24};
}

// Transaction n: the record "last", one of ten others, a ledger row; reports and decisions mixed.
DurableChanges Transaction(int64_t n) {
  const std::string value = absl::StrCat(n);
  return {.records = {{"last", value},
                      {absl::StrCat("other/", n % 10), std::string(500, 'a' + n % 26)}},
          .ledger = {{1, LedgerKind::kStep, n, value}},
          .durability = n % 5 == 0 ? Durability::kDecision : Durability::kReport};
}

// Writes n, n + 1, ... and says so after each.
[[noreturn]] void WriteForEver(const TempFolder& folder, int64_t n, int out) {
  auto journal = SqliteJournal::Open(OptionsIn(folder));
  if (!journal.ok()) _exit(1);
  for (;; ++n) {
    if (!(*journal)->Write(Transaction(n)).ok()) _exit(2);
    if (write(out, &n, sizeof(n)) != sizeof(n)) _exit(3);
    if (n % 7 == 0) (void)(*journal)->Maintain();
  }
}

// The last transaction that is there, after it was checked that all before it are.
int64_t LastWritten(const TempFolder& folder) {
  auto journal = SqliteJournal::Open(OptionsIn(folder));
  EXPECT_TRUE(journal.ok()) << journal.status();
  const auto state = (*journal)->Load(1'000'000);
  EXPECT_TRUE(state.ok()) << state.status();
  int64_t last = 0;
  for (const DurableRecord& record : state->records) {
    if (record.key != "last") continue;
    EXPECT_TRUE(absl::SimpleAtoi(*record.value, &last));
  }
  EXPECT_EQ(static_cast<int64_t>(state->ledger.size()), last);
  for (int64_t i = 0; i < static_cast<int64_t>(state->ledger.size()); ++i) {
    EXPECT_EQ(state->ledger[i].index, i + 1);
    EXPECT_EQ(state->ledger[i].value, absl::StrCat(i + 1));
  }
  return last;
}

TEST(JournalKillTest, NothingAcknowledgedIsLost) {
  TempFolder folder;
  std::mt19937 random(20'261);
  int64_t written = 0;
  for (int round = 0; round < 12; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      WriteForEver(folder, written + 1, ends[1]);
    }
    close(ends[1]);
    const int64_t enough = written + 1 + static_cast<int64_t>(random() % 60);
    int64_t acknowledged = written, n = 0;
    while (acknowledged < enough && read(ends[0], &n, sizeof(n)) == sizeof(n)) acknowledged = n;
    // Up to a few transactions further on, in the middle of one.
    usleep(static_cast<useconds_t>(random() % 3'000));
    kill(child, SIGKILL);
    while (read(ends[0], &n, sizeof(n)) == sizeof(n)) acknowledged = n;
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself with " << WEXITSTATUS(status);
    ASSERT_GE(acknowledged, enough);
    written = LastWritten(folder);
    ASSERT_GE(written, acknowledged) << "round " << round;
    ASSERT_LE(written, acknowledged + 1) << "round " << round;
  }
}

}  // namespace
}  // namespace muster
