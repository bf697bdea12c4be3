#include "coordinator/engine/sqlite_journal.h"

#include <cstdint>
#include <deque>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "common/runtime/random_bytes.h"

namespace muster {
namespace {

// "job/7" and all that is under "job/7/" ('0' is the character after '/').
constexpr char kForgetRecords[] =
    "DELETE FROM state WHERE key = 'job/' || ?1 OR "
    "(key >= 'job/' || ?1 || '/' AND key < 'job/' || ?1 || '0')";

constexpr char kTables[] = R"(
  CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE state(key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
  CREATE TABLE ledger(job INTEGER NOT NULL, kind INTEGER NOT NULL, idx INTEGER NOT NULL,
                      value TEXT NOT NULL, crc INTEGER NOT NULL,
                      PRIMARY KEY (job, kind, idx)) STRICT, WITHOUT ROWID;)";

constexpr char kWhatToDo[] =
    "; the file is damaged: put a backup in its place, or move it (and its -wal file) away and "
    "start again without the jobs that it held";

// SQLite's pages carry no checksum, so each row does: CRC-32C of its key, a zero byte, its value.
int64_t CheckOf(absl::string_view key, absl::string_view value) {
  return Crc32c(value, Crc32c(absl::string_view("", 1), Crc32c(key)));
}
std::string KeyOf(int64_t job, int64_t kind, int64_t index) {
  return absl::StrCat(job, "/", kind, "/", index);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(
    const SqliteJournalOptions& options) {
  ASSIGN_OR_RETURN(auto db, SqliteDb::Open(options.path, options.vfs));
  std::unique_ptr<SqliteJournal> journal(new SqliteJournal(options, std::move(db)));
  RETURN_IF_ERROR(journal->Prepare());
  // Without room for the reserve it still works: Maintain says so.
  (void)journal->reserve_.Take();
  return journal;
}

SqliteJournal::SqliteJournal(const SqliteJournalOptions& options, std::unique_ptr<SqliteDb> db)
    : options_(options),
      reserve_(options.path + ".reserve", options.reserve_bytes),
      db_(std::move(db)) {}

absl::Status SqliteJournal::Prepare() {
  // Exclusive: the log's index is in this process's memory, and a second process is kept out.
  RETURN_IF_ERROR(db_->Exec("PRAGMA locking_mode = EXCLUSIVE"));
  RETURN_IF_ERROR(db_->Exec("PRAGMA cell_size_check = ON"));
  ASSIGN_OR_RETURN(const std::string mode, db_->Value("PRAGMA journal_mode = WAL"));
  if (mode != "wal") {
    return absl::FailedPreconditionError(absl::StrCat(
        db_->path(), ": this file system allows no write-ahead log (journal_mode=", mode,
        "); use a folder on a local disk"));
  }
  RETURN_IF_ERROR(
      db_->Exec(absl::StrCat("PRAGMA journal_size_limit = ", options_.log_limit_pages * 4096)));
  RETURN_IF_ERROR(SetDurability(Durability::kDecision));
  ASSIGN_OR_RETURN(const std::string tables, db_->Value("SELECT count(*) FROM sqlite_schema"));
  if (tables == "0") RETURN_IF_ERROR(Create());
  RETURN_IF_ERROR(CheckVersion());
  ASSIGN_OR_RETURN(const std::string check, db_->Value("PRAGMA quick_check(1)"));
  if (check != "ok") return Damaged(check);
  const std::pair<SqliteStatement*, const char*> statements[] = {
      {&begin_, "BEGIN IMMEDIATE"},
      {&commit_, "COMMIT"},
      {&rollback_, "ROLLBACK"},
      {&put_, "REPLACE INTO state(key, value, crc) VALUES (?1, ?2, ?3)"},
      {&erase_, "DELETE FROM state WHERE key = ?1"},
      {&append_, "REPLACE INTO ledger(job, kind, idx, value, crc) VALUES (?1, ?2, ?3, ?4, ?5)"},
      {&forget_records_, kForgetRecords},
      {&forget_ledger_, "DELETE FROM ledger WHERE job = ?1"},
      {&read_ledger_,
       "SELECT idx, value, crc FROM ledger WHERE job = ?1 AND kind = ?2 AND idx >= ?3 "
       "ORDER BY idx LIMIT ?4"},
  };
  for (const auto& [statement, sql] : statements) {
    ASSIGN_OR_RETURN(*statement, SqliteStatement::Prepare(db_.get(), sql));
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::Create() {
  created_ = true;
  RETURN_IF_ERROR(db_->Exec(absl::StrCat("BEGIN IMMEDIATE;", kTables)));
  ASSIGN_OR_RETURN(SqliteStatement put,
                   SqliteStatement::Prepare(db_.get(), "INSERT INTO meta VALUES (?1, ?2)"));
  const std::pair<std::string, std::string> values[] = {
      {"version", absl::StrCat(kDurableVersion)},
      {"coordinator_id", absl::BytesToHexString(RandomBytes(8))},
      {"created_by", options_.created_by}};
  for (const auto& [key, value] : values) RETURN_IF_ERROR(put.Bind(1, key).Bind(2, value).Run());
  return db_->Exec("COMMIT");
}

absl::Status SqliteJournal::CheckVersion() {
  ASSIGN_OR_RETURN(const std::string version,
                   db_->Value("SELECT value FROM meta WHERE key = 'version'"));
  int64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number < 1) {
    return Damaged(
        absl::StrCat("its version \"", absl::CHexEscape(version), "\" is not a number from 1 on"));
  }
  if (number > kDurableVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        db_->path(), ": version ", number, " was written by a newer muster-coordinator; this one ",
        "reads versions up to ", kDurableVersion, ": start the newer one, or use another folder"));
  }
  ASSIGN_OR_RETURN(const std::string id,
                   db_->Value("SELECT value FROM meta WHERE key = 'coordinator_id'"));
  if (id.size() != 16) {
    return Damaged(
        absl::StrCat("its coordinator_id \"", absl::CHexEscape(id), "\" is not 16 hex digits"));
  }
  coordinator_id_ = absl::HexStringToBytes(id);
  if (number < kDurableVersion) {  // what is written from now on is of this version
    RETURN_IF_ERROR(db_->Exec(
        absl::StrCat("UPDATE meta SET value = '", kDurableVersion, "' WHERE key = 'version'")));
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::Damaged(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(db_->path(), ": ", what, kWhatToDo));
}

absl::Status SqliteJournal::SetDurability(Durability durability) {
  const char* wanted = durability == Durability::kDecision ? "FULL" : "NORMAL";
  if (synchronous_ == wanted) return absl::OkStatus();
  RETURN_IF_ERROR(db_->Exec(absl::StrCat("PRAGMA synchronous = ", wanted)));
  synchronous_ = wanted;
  return absl::OkStatus();
}

absl::StatusOr<DurableState> SqliteJournal::Load(int64_t tail) {
  DurableState state;
  ASSIGN_OR_RETURN(
      SqliteStatement records,
      SqliteStatement::Prepare(db_.get(), "SELECT key, value, crc FROM state ORDER BY key"));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, records.Step());
    if (!row) break;
    DurableRecord record{records.Text(0), records.Text(1)};
    if (CheckOf(record.key, *record.value) != records.Int(2)) {
      return Damaged(absl::StrCat("the record \"", absl::CHexEscape(record.key),
                                  "\" is not as it was written"));
    }
    if (!state.records.empty() && record.key <= state.records.back().key) {
      return Damaged("the records are not in order");
    }
    state.records.push_back(std::move(record));
  }
  // All rows, though only the newest are wanted: what is out of place would never be found by a
  // search, so this is where it is noticed.
  ASSIGN_OR_RETURN(SqliteStatement rows,
                   SqliteStatement::Prepare(db_.get(),
                                            "SELECT idx, value, crc, job, kind FROM ledger "
                                            "ORDER BY job, kind, idx"));
  auto last = std::tuple<int64_t, int64_t, int64_t>(INT64_MIN, 0, 0);
  std::deque<LedgerRow> newest;  // of one job and kind
  const auto take_newest = [&] {
    std::move(newest.begin(), newest.end(), std::back_inserter(state.ledger));
    newest.clear();
  };
  while (true) {
    ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) break;
    const std::tuple at(rows.Int(3), rows.Int(4), rows.Int(0));
    if (at <= last) return Damaged("the ledger is not in order");
    ASSIGN_OR_RETURN(LedgerRow row, RowOf(std::get<0>(at), std::get<1>(at), rows));
    if (!newest.empty() && (newest.back().job != row.job || newest.back().kind != row.kind)) {
      take_newest();
    }
    newest.push_back(std::move(row));
    if (static_cast<int64_t>(newest.size()) > tail) newest.pop_front();
    last = at;
  }
  take_newest();
  return state;
}

absl::StatusOr<LedgerRow> SqliteJournal::RowOf(int64_t job, int64_t kind,
                                               const SqliteStatement& statement) const {
  LedgerRow row{job, static_cast<LedgerKind>(kind), statement.Int(0), statement.Text(1)};
  const std::string key = KeyOf(job, kind, row.index);
  if (CheckOf(key, row.value) == statement.Int(2)) return row;
  return Damaged(absl::StrCat("the ledger's row ", key, " is not as it was written"));
}

absl::StatusOr<std::vector<LedgerRow>> SqliteJournal::ReadLedger(int64_t job, LedgerKind kind,
                                                                 int64_t since, int64_t limit) {
  std::vector<LedgerRow> rows;
  read_ledger_.Bind(1, job).Bind(2, static_cast<int64_t>(kind)).Bind(3, since).Bind(4, limit);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, read_ledger_.Step());
    if (!row) return rows;
    absl::StatusOr<LedgerRow> entry = RowOf(job, static_cast<int64_t>(kind), read_ledger_);
    if (!entry.ok()) {
      read_ledger_.Reset();
      return entry.status();
    }
    rows.push_back(*std::move(entry));
  }
}

absl::Status SqliteJournal::Write(const DurableChanges& changes) {
  absl::Status status = Transact(changes);
  if (absl::IsResourceExhausted(status) && reserve_.Free()) status = Transact(changes);
  RETURN_IF_ERROR(status);
  // The transaction stands, whatever comes of this.
  if (db_->log_pages() >= options_.log_limit_pages) (void)Tidy();
  return absl::OkStatus();
}

absl::Status SqliteJournal::Transact(const DurableChanges& changes) {
  RETURN_IF_ERROR(SetDurability(changes.durability));
  RETURN_IF_ERROR(begin_.Run());
  absl::Status status = Apply(changes);
  if (status.ok()) status = commit_.Run();
  if (!status.ok()) {
    (void)rollback_.Run();  // an error of its own means that SQLite has rolled back already
    return status;
  }
  unsynced_ = changes.durability == Durability::kReport;
  return absl::OkStatus();
}

absl::Status SqliteJournal::Apply(const DurableChanges& changes) {
  for (const DurableRecord& record : changes.records) {
    if (record.value.has_value()) {
      RETURN_IF_ERROR(put_.Bind(1, record.key)
                          .Bind(2, *record.value)
                          .Bind(3, CheckOf(record.key, *record.value))
                          .Run());
    } else {
      RETURN_IF_ERROR(erase_.Bind(1, record.key).Run());
    }
  }
  for (const LedgerRow& row : changes.ledger) {
    RETURN_IF_ERROR(
        append_.Bind(1, row.job)
            .Bind(2, static_cast<int64_t>(row.kind))
            .Bind(3, row.index)
            .Bind(4, row.value)
            .Bind(5, CheckOf(KeyOf(row.job, static_cast<int64_t>(row.kind), row.index), row.value))
            .Run());
  }
  for (const int64_t job : changes.forgotten_jobs) RETURN_IF_ERROR(Forget(job));
  return absl::OkStatus();
}

absl::Status SqliteJournal::Forget(int64_t job) {
  RETURN_IF_ERROR(forget_records_.Bind(1, job).Run());
  return forget_ledger_.Bind(1, job).Run();
}

absl::Status SqliteJournal::Sync() {
  if (!unsynced_) return absl::OkStatus();
  RETURN_IF_ERROR(db_->SyncLog());
  unsynced_ = false;
  return absl::OkStatus();
}

absl::Status SqliteJournal::Tidy() {
  absl::Status status = db_->Checkpoint();
  if (absl::IsResourceExhausted(status) && reserve_.Free()) status = db_->Checkpoint();
  return status;
}

absl::Status SqliteJournal::Maintain() {
  if (db_->log_pages() >= options_.tidy_pages) RETURN_IF_ERROR(Tidy());
  return Annotate(reserve_.Take(), "the journal's disk is full");
}

}  // namespace muster
