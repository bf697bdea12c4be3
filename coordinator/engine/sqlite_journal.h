// The journal in one SQLite file with a write-ahead log. Not thread-safe.
//
//   meta(key, value)                     version, coordinator_id, created_by
//   state(key, value, crc)               the records
//   ledger(job, kind, idx, value, crc)   the rows of jobs
//
// Durability: a decision's transaction is synced before Write returns; a report's is in the
// system's hands then, and on the disk with the next decision or Sync(). The log is moved into the
// file in quiet moments (Maintain), or by Write when it has grown to log_limit_pages.
//
// A full disk: a file beside it holds some space in reserve. The first write that finds no room
// frees it and goes through; from then on Maintain says what is wrong, until there is room for the
// reserve again.
//
// The file stays locked while it is open, so no other process can read or write it.
#pragma once

#include <memory>
#include <string>

#include "coordinator/engine/journal.h"
#include "coordinator/engine/space_reserve.h"
#include "coordinator/engine/sqlite_db.h"

namespace muster {

struct SqliteJournalOptions {
  std::string path;        // ".../journal.sqlite"; made when there is none
  std::string created_by;  // noted in a new file
  int64_t reserve_bytes = 16 << 20;
  int64_t tidy_pages = 512;         // of 4 KiB: Maintain moves the log from here on
  int64_t log_limit_pages = 8'192;  // Write does
  std::string vfs;                  // SQLite's file layer, for tests
};

class SqliteJournal final : public Journal {
 public:
  // DATA_LOSS: the file is damaged; FAILED_PRECONDITION: it is of a newer version, or may not be
  // written; RESOURCE_EXHAUSTED: no room to make it. Messages name the file and say what to do.
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const SqliteJournalOptions& options);

  absl::StatusOr<DurableState> Load(int64_t tail) override;
  absl::Status Write(const DurableChanges& changes) override;
  absl::StatusOr<std::vector<LedgerRow>> ReadLedger(int64_t job, LedgerKind kind, int64_t since,
                                                    int64_t limit) override;
  absl::Status Sync() override;
  absl::Status Maintain() override;
  std::string Name() const override { return options_.path; }

  // Eight random bytes, drawn when the file was made.
  const std::string& coordinator_id() const { return coordinator_id_; }
  bool created() const { return created_; }  // by this Open
  // Of the last write that did not wait, not synced yet.
  bool unsynced() const { return unsynced_; }

 private:
  SqliteJournal(const SqliteJournalOptions& options, std::unique_ptr<SqliteDb> db);
  absl::Status Prepare();
  absl::Status Create();
  absl::Status CheckVersion();
  absl::Status Damaged(absl::string_view what) const;
  // From the columns index, value, check.
  absl::StatusOr<LedgerRow> RowOf(int64_t job, int64_t kind,
                                  const SqliteStatement& statement) const;
  absl::Status Transact(const DurableChanges& changes);
  absl::Status Apply(const DurableChanges& changes);
  absl::Status Forget(int64_t job);
  absl::Status SetDurability(Durability durability);
  absl::Status Tidy();

  const SqliteJournalOptions options_;
  SpaceReserve reserve_;
  std::unique_ptr<SqliteDb> db_;
  SqliteStatement begin_, commit_, rollback_, put_, erase_, append_, forget_records_,
      forget_ledger_, read_ledger_;
  std::string coordinator_id_;
  bool created_ = false;
  bool unsynced_ = false;
  std::string synchronous_;  // as last set
};

}  // namespace muster
