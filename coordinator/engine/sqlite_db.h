// SQLite as statuses: one connection, and its prepared statements. Not thread-safe.
//
// Codes: RESOURCE_EXHAUSTED when the disk (or a quota) is full, UNAVAILABLE for an I/O error or a
// file that another process has locked, DATA_LOSS for a file that is damaged or no database,
// FAILED_PRECONDITION for one that may not be opened or written, INTERNAL for the rest. Messages
// name the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace muster {

class SqliteDb {
 public:
  // Makes the file when there is none. `vfs`: SQLite's name of the file layer; empty: its own.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path,
                                                        const std::string& vfs = "");
  ~SqliteDb();
  SqliteDb(const SqliteDb&) = delete;

  const std::string& path() const { return path_; }
  // Statements without parameters and results.
  absl::Status Exec(const std::string& sql);
  // The first column of the only row, as text.
  absl::StatusOr<std::string> Value(const std::string& sql);
  // fsync of the write-ahead log.
  absl::Status SyncLog();
  // Moves what is in the log into the database file and syncs it; the log starts again at its
  // beginning.
  absl::Status Checkpoint();
  // Pages in the log after the last commit.
  int64_t log_pages() const { return log_pages_; }

 private:
  friend class SqliteStatement;
  SqliteDb(std::string path, sqlite3* db);
  absl::Status StatusOf(int code, absl::string_view what) const;

  const std::string path_;
  sqlite3* const db_;
  int64_t log_pages_ = 0;
};

class SqliteStatement {
 public:
  // `db` outlives the statement.
  static absl::StatusOr<SqliteStatement> Prepare(SqliteDb* db, absl::string_view sql);
  SqliteStatement() = default;
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&& other) noexcept;
  ~SqliteStatement();

  // Parameters count from 1. The text must live until the statement was stepped.
  SqliteStatement& Bind(int parameter, int64_t value);
  SqliteStatement& Bind(int parameter, absl::string_view text);
  // True: a row is there to be read. False: done, and the statement is ready for the next use.
  absl::StatusOr<bool> Step();
  // For a statement without rows.
  absl::Status Run();
  // Before the next use, when rows were left.
  void Reset();
  // Columns count from 0.
  int64_t Int(int column) const;
  std::string Text(int column) const;

 private:
  SqliteDb* db_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace muster
