// MUSTER_LOG(kInfo) << "worker registered worker=" << name;
// One line a record on stderr: time, level, process name, text; or, on request, one JSON object a
// line. Thread-safe; a record is written with one write(2).
//
// The text of a record is a message, then fields: key=value, or key="a value with blanks". As JSON:
//   {"time": "2026-01-31T12:00:00.000Z", "level": "info", "process": "coordinator",
//    "job": "job-7", "epoch": 2, "rank": 5, "worker": "a/1",
//    "message": "worker registered", "fields": {"worker": "a/1"}}
// where job, epoch, rank and worker come from the log context, or else from the record's own
// fields, and are left out where neither knows them. Values of fields are strings.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// What the records of a process or a thread are about.
struct LogContext {
  std::string job;  // empty: not known
  std::optional<int64_t> epoch;
  std::optional<int> rank;
  std::string worker;  // empty: not known
};

// Name shown in each line ("coordinator", "worker", "trainer r3"); call once, early.
void SetLogName(std::string name);
// Records below this level are dropped. Default: kInfo, or
// MUSTER_LOG_LEVEL=debug|info|warning|error.
void SetLogLevel(LogLevel level);
// Default: kText, or MUSTER_LOG_FORMAT=text|json.
void SetLogFormat(LogFormat format);
// For a flag --log-format: sets the format, and MUSTER_LOG_FORMAT so that child processes write the
// same. False: `name` is neither "text" nor "json". Before the first thread.
bool SetLogFormatByName(const std::string& name);
bool LogEnabled(LogLevel level);
void WriteLog(LogLevel level, absl::string_view text);

// Of the whole process, until set again.
void SetLogContext(const LogContext& context);
// Of this thread, over the process's, for as long as it lives. Scopes nest.
class ScopedLogContext {
 public:
  explicit ScopedLogContext(LogContext context);
  ~ScopedLogContext();
  ScopedLogContext(const ScopedLogContext&) = delete;
  ScopedLogContext& operator=(const ScopedLogContext&) = delete;

 private:
  friend void WriteLog(LogLevel level, absl::string_view text);
  const LogContext context_;
  const ScopedLogContext* const outer_;
};

// One record as JSON, without the line's end. Pure.
std::string LogRecordAsJson(absl::Time time, LogLevel level, absl::string_view process,
                            const LogContext& context, absl::string_view text);

class LogRecord {
 public:
  explicit LogRecord(LogLevel level) : level_(level) {}
  ~LogRecord() { WriteLog(level_, out_.str()); }
  std::ostream& stream() { return out_; }

 private:
  const LogLevel level_;
  std::ostringstream out_;
};

}  // namespace muster

#define MUSTER_LOG(level)                                 \
  if (!::muster::LogEnabled(::muster::LogLevel::level)) { \
  } else                                                  \
    ::muster::LogRecord(::muster::LogLevel::level).stream()
