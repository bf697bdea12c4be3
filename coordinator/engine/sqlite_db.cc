#include "coordinator/engine/sqlite_db.h"

#include <sqlite3.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr char kDamaged[] =
    "; the file is damaged: put a backup in its place, or move it (and its -wal file) away and "
    "start again without the jobs that it held";

bool IsFull(int code, int error) {
  if (code == SQLITE_FULL) return true;
  return code == SQLITE_IOERR && (error == ENOSPC || error == EDQUOT || error == EFBIG);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path,
                                                         const std::string& vfs) {
  sqlite3* raw = nullptr;
  const int flags =
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, vfs.empty() ? nullptr : vfs.c_str());
  if (raw == nullptr) return absl::ResourceExhaustedError(absl::StrCat(path, ": out of memory"));
  std::unique_ptr<SqliteDb> db(new SqliteDb(path, raw));
  RETURN_IF_ERROR(db->StatusOf(code, "cannot be opened"));
  // A damaged file must not be able to do more than to be damaged.
  sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_wal_hook(
      raw,
      [](void* self, sqlite3*, const char*, int pages) {
        static_cast<SqliteDb*>(self)->log_pages_ = pages;
        return SQLITE_OK;
      },
      db.get());
  return db;
}

SqliteDb::SqliteDb(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}

SqliteDb::~SqliteDb() { sqlite3_close_v2(db_); }

absl::Status SqliteDb::StatusOf(int code, absl::string_view what) const {
  const int kind = code & 0xff;
  if (kind == SQLITE_OK || kind == SQLITE_ROW || kind == SQLITE_DONE) return absl::OkStatus();
  const int error = sqlite3_system_errno(db_);
  std::string message = absl::StrCat(path_, ": ", what, ": ", sqlite3_errmsg(db_));
  if ((kind == SQLITE_IOERR || kind == SQLITE_CANTOPEN) && error != 0) {
    absl::StrAppend(&message, " (", std::strerror(error), ")");
  }
  if (IsFull(kind, error)) {
    return absl::ResourceExhaustedError(absl::StrCat(message, "; make room there"));
  }
  switch (kind) {
    case SQLITE_IOERR:
      return absl::UnavailableError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(message, "; another process has it open"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(message, kDamaged));
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; the file and its folder must be writable by this user"));
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status SqliteDb::Exec(const std::string& sql) {
  return StatusOf(sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr),
                  absl::StrCat("\"", sql.substr(0, 60), "\""));
}

absl::StatusOr<std::string> SqliteDb::Value(const std::string& sql) {
  ASSIGN_OR_RETURN(SqliteStatement statement, SqliteStatement::Prepare(this, sql));
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  if (!row) return absl::DataLossError(absl::StrCat(path_, ": \"", sql, "\" has no row", kDamaged));
  return statement.Text(0);
}

absl::Status SqliteDb::SyncLog() {
  sqlite3_file* log = nullptr;
  const int code = sqlite3_file_control(db_, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (code != SQLITE_OK) return StatusOf(code, "its log cannot be found");
  if (log == nullptr || log->pMethods == nullptr) return absl::OkStatus();  // nothing written yet
  if (log->pMethods->xSync(log, SQLITE_SYNC_NORMAL) == SQLITE_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path_, "-wal: cannot be synced: disk I/O error"));
}

absl::Status SqliteDb::Checkpoint() {
  int in_log = 0, moved = 0;
  const int code =
      sqlite3_wal_checkpoint_v2(db_, "main", SQLITE_CHECKPOINT_PASSIVE, &in_log, &moved);
  RETURN_IF_ERROR(StatusOf(code, "the log cannot be moved into it"));
  if (in_log == moved) log_pages_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<SqliteStatement> SqliteStatement::Prepare(SqliteDb* db, absl::string_view sql) {
  SqliteStatement statement;
  statement.db_ = db;
  const int code = sqlite3_prepare_v3(db->db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement.statement_, nullptr);
  RETURN_IF_ERROR(db->StatusOf(code, absl::StrCat("\"", sql, "\"")));
  return statement;
}

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : db_(other.db_), statement_(std::exchange(other.statement_, nullptr)) {}

SqliteStatement& SqliteStatement::operator=(SqliteStatement&& other) noexcept {
  std::swap(db_, other.db_);
  std::swap(statement_, other.statement_);
  return *this;
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::Bind(int parameter, int64_t value) {
  sqlite3_bind_int64(statement_, parameter, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(int parameter, absl::string_view text) {
  sqlite3_bind_text64(statement_, parameter, text.data() == nullptr ? "" : text.data(), text.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  const absl::Status status =
      code == SQLITE_DONE ? absl::OkStatus() : db_->StatusOf(code, "cannot be read or written");
  sqlite3_reset(statement_);
  if (!status.ok()) return status;
  return false;
}

absl::Status SqliteStatement::Run() { return Step().status(); }

void SqliteStatement::Reset() { sqlite3_reset(statement_); }

int64_t SqliteStatement::Int(int column) const { return sqlite3_column_int64(statement_, column); }

std::string SqliteStatement::Text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

}  // namespace muster
