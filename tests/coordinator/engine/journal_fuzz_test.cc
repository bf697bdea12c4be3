// Torn and damaged files: the database and its log with drawn bytes changed, cut off or doubled.
// Opening such a journal ends with a clean error, or with a state that was there after one of its
// transactions.
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "coordinator/engine/sqlite_journal.h"
#include "tests/coordinator/engine/temp_folder.h"
#include "tests/support/memory_journal.h"

namespace muster {
namespace {

std::string BytesOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}
void PutBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string Mutated(std::string bytes, std::mt19937_64* random) {
  if (bytes.empty()) return bytes;
  const auto draw = [&](size_t below) { return static_cast<size_t>((*random)() % below); };
  for (size_t times = 1 + draw(4); times > 0 && !bytes.empty(); --times) {
    const size_t at = draw(bytes.size());
    const size_t size = std::min(bytes.size() - at, 1 + draw(600));
    switch (draw(6)) {
      case 0:
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(8)));
        break;
      case 2:
        bytes[at] = static_cast<char>(draw(256));
        break;
      case 3:
        bytes.replace(at, size, size, '\0');
        break;
      case 4:  // cut off: the write that was under way
        if (draw(3) == 0) bytes.resize(at);
        break;
      case 5:  // a block in the place of another
        bytes.replace(draw(bytes.size() - size + 1), size, bytes.substr(at, size));
        break;
    }
  }
  return bytes;
}

class JournalFuzzTest : public ::testing::Test {
 protected:
  static SqliteJournalOptions OptionsIn(const std::string& folder) {
    return {.path = folder + "/journal.sqlite", .reserve_bytes = 0, .tidy_pages = 1};
  }
  // A few dozen transactions; what was there after each of them.
  void SetUp() override {
    auto journal = SqliteJournal::Open(OptionsIn(folder_.path()));
    ASSERT_TRUE(journal.ok()) << journal.status();
    MemoryJournal memory;
    std::mt19937_64 random(3);
    states_.push_back(*memory.Load(1'000));
    for (int64_t n = 1; n <= 40; ++n) {
      DurableChanges changes;
      const int64_t job = 1 + n % 6;
      changes.records.push_back({"core", absl::StrCat("{\"next\":", n, "}")});
      changes.records.push_back({absl::StrCat("job/", job),
                                 std::string(random() % 900, static_cast<char>('a' + n % 26))});
      for (int64_t row = 0; row < 8; ++row) {
        changes.ledger.push_back(
            {job, LedgerKind::kStep, n * 8 + row, absl::StrCat("{\"v\":", random(), "}")});
      }
      ASSERT_TRUE((*journal)->Write(changes).ok());
      ASSERT_TRUE(memory.Write(changes).ok());
      states_.push_back(*memory.Load(1'000));
      if (n == 30) {
        ASSERT_TRUE((*journal)->Maintain().ok());
      }
    }
    // As a killed process leaves them: part in the file, part in the log.
    file_ = BytesOf(folder_ / "journal.sqlite");
    log_ = BytesOf(folder_ / "journal.sqlite-wal");
    ASSERT_GT(file_.size(), 8'192u);
    ASSERT_GT(log_.size(), 8'192u);
  }
  // Opens such files. True when there was a state; an error must be one that tells what to do.
  bool Opens(const std::string& file, const std::string& log) {
    TempFolder folder;
    PutBytes(folder / "journal.sqlite", file);
    if (!log.empty()) PutBytes(folder / "journal.sqlite-wal", log);
    auto journal = SqliteJournal::Open(OptionsIn(folder.path()));
    absl::StatusOr<DurableState> state =
        journal.ok() ? (*journal)->Load(1'000) : absl::StatusOr<DurableState>(journal.status());
    if (!state.ok()) {
      EXPECT_NE(std::string(state.status().message()).find("journal.sqlite"), std::string::npos)
          << state.status();
      return false;
    }
    bool known = false;
    for (const DurableState& at : states_) {
      known = known || (at.records == state->records && at.ledger == state->ledger);
    }
    EXPECT_TRUE(known) << "a state that never was";
    // It can be written, or says why not.
    const absl::Status written = (*journal)->Write({.records = {{"core", "{}"}}});
    EXPECT_TRUE(written.ok() || !written.message().empty());
    return true;
  }

  TempFolder folder_;
  std::string file_, log_;
  std::vector<DurableState> states_;
};

TEST_F(JournalFuzzTest, WholeFilesGiveTheLastState) {
  EXPECT_TRUE(Opens(file_, log_));
  EXPECT_TRUE(Opens(file_, "")) << "as it was when the log was last moved";
}

TEST_F(JournalFuzzTest, ALogThatEndsAnywhereGivesATransactionsEnd) {
  for (size_t size = 0; size < log_.size(); size += log_.size() / 61) {
    EXPECT_TRUE(Opens(file_, log_.substr(0, size))) << size;
  }
}

TEST_F(JournalFuzzTest, DamagedLogsGiveATransactionsEnd) {
  int opened = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    opened += Opens(file_, Mutated(log_, &random));
  }
  EXPECT_GT(opened, 100);
}

TEST_F(JournalFuzzTest, DamagedFilesGiveAnErrorOrAState) {
  int opened = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    (Opens(Mutated(file_, &random), seed % 2 == 0 ? log_ : "") ? opened : refused) += 1;
  }
  EXPECT_GT(opened, 5);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace muster
